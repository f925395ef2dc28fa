// Search: one field for words and pictures. Every query has an address, so back, forward and links work;
// an uploaded picture is only kept in memory, under a number that is its address.
import { ask, attempt, byId, element, fill, picture, say } from "./workbench.js";

// Somebody who may search a release but not see its photos gets the numbers of entries instead.
const seesPhotos = !byId("search").hasAttribute("data-no-photos");
const dataset = byId("search").dataset.dataset, base = `/api/search/${dataset}`;
const rerank = byId("rerank"), file = byId("file"), words = byId("words"), quiet = byId("understood").innerHTML;
const FIRST = window.innerWidth < 640 ? 9 : 16;
let anyway = false, asks = 0;
const address = (photo) => `/api/datasets/${dataset}/photos/${photo}`;

// The query in the page's address: q (words), photo (one of the owner's), or query (an uploaded picture).
function question() {
  const parameters = new URLSearchParams(location.search);
  return { q: parameters.get("q"), photo: parameters.get("photo"), query: parameters.get("query"), own: parameters.get("sort") === "own" };
}
function go(asked, replace = false) {
  const to = new URLSearchParams({ dataset });
  for (const name of ["q", "photo", "query"]) if (asked[name]) to.set(name, asked[name]);
  if (asked.own) to.set("sort", "own");
  history[replace ? "replaceState" : "pushState"](null, "", `/search?${to}`);
}

function mixed({ mix, noise, count }) {
  const by = noise === null ? "" : `Noise put about ${noise === 0 ? "none" : noise} here.`;
  const [first, ...others] = mix;
  const words = first ? [others.length ? "Mixes " : count > 1 ? "All " : "Shows ", element("b", {}, others.length ? `${first[0]} ${first[1]}` : first[0]), others.slice(0, 3).map(([name, number]) => `, ${name} ${number}`).join(""), others.length > 3 ? ` and ${others.length - 3} more kind${others.length === 4 ? "" : "s"}. ` : ". "] : [];
  return element("p", {}, ...words, count > 0 ? by : "");
}

function group(members) {
  const photos = members.photos.map((hit) => {
    if (!seesPhotos) return element("li", {}, element("code", { title: "Number of an entry; the owner knows its photo" }, hit.id.slice(0, 8)));
    const button = element("button", { type: "button", class: "again", "aria-label": `Search with ${hit.name}`, title: hit.name }, element("img", { src: address(hit.id), alt: "", loading: "lazy" }));
    button.addEventListener("click", () => { go({ photo: hit.id, own: rerank.checked }); run(); });
    return element("li", {}, button);
  });
  const hidden = photos.slice(FIRST), rest = members.count - members.photos.length;
  const list = element("ul", { class: "photos" }, ...photos.slice(0, FIRST));
  const more = element("button", { type: "button", class: "plain small" }, `${hidden.length.toLocaleString("en")} more${members.noise === null ? "" : " in this group"}`);
  more.addEventListener("click", () => { list.append(...hidden); more.remove(); });
  const all = [list, hidden.length ? element("div", { class: "buttons" }, more) : null, rest > 0 ? element("p", { class: "quiet" }, `and ${rest.toLocaleString("en")} beyond these`) : null].filter(Boolean);
  if (members.far) return element("section", { class: "card" }, element("details", { class: "more" }, element("summary", {}, `Show ${members.title}`), ...all));
  return element("section", { class: "card" }, element("div", { class: "card-head" }, element("h2", {}, members.title), members.noise === null ? null : mixed(members)), ...all);
}

function understood(answer) {
  if (!answer.searched_for.length && !answer.ignored.length) { byId("understood").innerHTML = ""; return; }
  const parts = answer.searched_for.length ? ["Searched for ", ...answer.searched_for.slice(0, 3).map((word) => element("span", { class: "chip" }, word))] : ["Searched for nothing"];
  if (answer.ignored.length) parts.push(" · ignored: ", element("s", {}, answer.ignored.join(", ")));
  fill(byId("understood"), parts.flatMap((part, i) => (i > 1 && part instanceof Node && part.className === "chip" ? [" ", part] : [part])));
}

function show(answer) {
  say("");
  byId("nothing").hidden = !answer.nothing || anyway;
  byId("nothing-says").textContent = answer.nothing ?? "";
  byId("anyway").hidden = byId("own-look").hidden = byId("nothing-why").hidden = !answer.groups.length;
  fill(byId("groups"), answer.nothing && !anyway ? [] : answer.groups.map(group));
  understood(answer);
  byId("start").hidden = true;
  byId("copy").hidden = false;
  byId("rerank-note").textContent = answer.reranked ? "on: only you can see this order" : "off: you see what others see";
}

// Run the query of the address. An answer that comes after the next query is not shown.
async function run() {
  const asked = question(), turn = ++asks;
  rerank.checked = asked.own;
  words.value = asked.q ?? "";
  picture(byId("asked"), asked.photo ? address(asked.photo) : asked.query ? sent[asked.query] : null);
  if (!asked.q && !asked.photo && !asked.query) {
    fill(byId("groups"), []);
    byId("nothing").hidden = byId("copy").hidden = true;
    byId("start").hidden = !seesPhotos;
    byId("understood").innerHTML = quiet;
    say("");
    return;
  }
  say("Searching.");
  const way = asked.q ? [`${base}/words`, { words: asked.q }] : [asked.photo ? `${base}/photo/${asked.photo}` : `${base}/again/${asked.query}`];
  await attempt(async () => {
    try {
      const answer = await ask("POST", `${way[0]}?rerank=${asked.own}`, way[1]);
      if (turn === asks) show(answer);
    } catch (error) {
      if (turn !== asks) return;
      if (!asked.query || error.code !== "not_found") throw error;
      fill(byId("groups"), []);
      say("Pictures from elsewhere are kept in memory only, and this one is gone. Choose it again.", true);
    }
  });
}

const sent = {};
async function upload(chosen) {
  if (!chosen) return;
  anyway = false;
  const turn = ++asks;
  say("Searching.");
  await attempt(async () => {
    const answer = await ask("POST", `${base}/upload?rerank=${rerank.checked}`, chosen).catch((error) => { if (turn === asks) throw error; });
    if (turn !== asks) return;
    sent[answer.query] = URL.createObjectURL(chosen);
    go({ query: answer.query, own: rerank.checked });
    words.value = "";
    picture(byId("asked"), sent[answer.query]);
    show(answer);
  });
}
file.addEventListener("change", () => upload(file.files[0]));
byId("ask").addEventListener("dragover", (event) => event.preventDefault());
byId("ask").addEventListener("drop", (event) => { event.preventDefault(); upload(event.dataTransfer.files[0]); });
byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = words.value.trim();
  if (!text) { if (words.disabled) file.click(); return; }
  anyway = false;
  go({ q: text, own: rerank.checked });
  run();
});
for (const button of document.querySelectorAll("[data-photo]")) button.addEventListener("click", () => { anyway = false; go({ photo: button.dataset.photo, own: rerank.checked }); run(); });
const sort = (own) => { const asked = question(); if (asked.q || asked.photo || asked.query) { go({ ...asked, own }, true); run(); } };
rerank.addEventListener("change", () => sort(rerank.checked));
byId("anyway").addEventListener("click", () => { anyway = true; run(); });
byId("own-look").addEventListener("click", () => sort(true));
byId("copy").addEventListener("click", async () => { await navigator.clipboard?.writeText(location.href); byId("copy").textContent = "Copied"; });
window.addEventListener("popstate", () => { anyway = false; run(); });
// Keys: arrows move between photos, Enter presses; "/" goes to the search field, R sorts by the owner's photos.
function move(step) {
  const buttons = [...document.querySelectorAll("#groups button.again, #start:not([hidden]) button.again")];
  const now = buttons.indexOf(document.activeElement);
  buttons[now < 0 ? 0 : Math.min(buttons.length - 1, Math.max(0, now + step))]?.focus();
}
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input:not([type=checkbox]), select, summary") || event.ctrlKey || event.metaKey || event.altKey) return;
  const steps = { ArrowLeft: -1, ArrowRight: 1 };
  if (event.key === "/") { event.preventDefault(); if (words.disabled) file.click(); else words.focus(); }
  if (event.key === "r" || event.key === "R") { rerank.checked = !rerank.checked; sort(rerank.checked); }
  if (event.key in steps) { event.preventDefault(); move(steps[event.key]); }
});
run();
