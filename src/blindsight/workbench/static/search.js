// Search: by a picture or a stored photo; another order asks by name and sends nothing again.
import { ask, attempt, byId, element, fill, picture, say } from "./workbench.js";

const dataset = byId("search").dataset.dataset, rerank = byId("rerank"), file = byId("file"), base = `/api/search/${dataset}`;
const FIRST = 12;
let query = null, asked = "", anyway = false;
const address = (photo) => `/api/datasets/${dataset}/photos/${photo}`;

const truth = ({ expect, count }) => (count === 1 ? `Its code is ${expect ? "probably true" : "probably wrong on purpose"}.` : `About ${expect} of these ${count} codes are true${expect < count ? "; the others are wrong on purpose" : ""}.`);

function group(found) {
  const photos = found.photos.map((hit) => {
    const button = element("button", { type: "button", class: "again", "aria-label": `Search with ${hit.name}` }, element("img", { src: address(hit.id), alt: "", loading: "lazy" }));
    button.addEventListener("click", () => byPhoto(hit.id, hit.name));
    return element("li", {}, button, element("span", { class: "name", title: hit.name }, hit.name.split("/").pop()));
  });
  const hidden = photos.slice(FIRST), rest = found.count - found.photos.length;
  const list = element("ul", { class: "photos" }, ...photos.slice(0, FIRST));
  const more = element("button", { type: "button", class: "plain small" }, `${hidden.length.toLocaleString("en")} more`);
  more.addEventListener("click", () => { list.append(...hidden); more.remove(); });
  const all = [list, hidden.length ? element("div", { class: "buttons" }, more) : null, rest > 0 ? element("p", { class: "quiet" }, `and ${rest.toLocaleString("en")} beyond these`) : null];
  if (found.far) return element("section", { class: "card" }, element("details", { class: "more" }, element("summary", {}, `${found.title}: show them`), ...all.filter(Boolean)));
  return element("section", { class: "card" }, element("div", { class: "card-head" }, element("h2", {}, found.title), element("span", { class: "pill stays" }, "only you see this")),
    found.expect === null ? null : element("p", {}, element("b", {}, truth(found)), element("span", { class: "quiet" }, " A true code says that a public network takes the photo for this kind, which may be wider than what you look for. The code cannot tell these photos apart, so their order means nothing.")),
    ...all);
}

function begin() {
  anyway = false;
  say("Searching.");
  fill(byId("groups"), []);
  byId("nothing").hidden = true;
}

function show(found) {
  say("");
  query = found.query;
  byId("nothing").hidden = !found.nothing || anyway;
  byId("nothing-says").textContent = found.nothing ?? "";
  fill(byId("groups"), found.nothing && !anyway ? [] : found.groups.map(group));
  if (found.taken) byId("asked-note").textContent = `${asked}: ${found.taken}. Used here, kept nowhere.`;
  byId("start").hidden = true;
  byId("rerank-note").textContent = found.reranked ? "Sorted by the photos in your vault: only you can see this order. Nothing leaves, nothing is spent."
    : "Sorts the first candidates by the photos in your vault. Only you can do this; nothing leaves, nothing is spent. Now you see what others would see.";
}

async function byPhoto(photo, name) {
  begin();
  picture(byId("asked"), address(photo));
  byId("asked-note").textContent = `${name} · stored here`;
  await attempt(async () => show(await ask("POST", `${base}/photo/${photo}?rerank=${rerank.checked}`)));
  byId("main").focus();
}

for (const button of document.querySelectorAll("[data-photo]")) button.addEventListener("click", () => byPhoto(button.dataset.photo, button.getAttribute("aria-label").replace("Search with ", "")));
file.addEventListener("change", () => attempt(async () => {
  const chosen = file.files[0];
  if (!chosen) return;
  begin();
  picture(byId("asked"), URL.createObjectURL(chosen));
  byId("asked-note").textContent = `${chosen.name} · used here, kept nowhere`;
  show(await ask("POST", `${base}/upload?rerank=${rerank.checked}`, chosen));
}));
byId("words-form")?.addEventListener("submit", (event) => {
  event.preventDefault();
  const words = byId("words").value.trim();
  if (!words) return;
  begin();
  picture(byId("asked"), null);
  asked = `“${words}”`;
  byId("asked-note").textContent = `${asked} · used here, kept nowhere`;
  attempt(async () => show(await ask("POST", `${base}/words?rerank=${rerank.checked}`, { words })));
});
const again = () => { if (query) attempt(async () => show(await ask("POST", `${base}/again/${query}?rerank=${rerank.checked}`))); };
rerank.addEventListener("change", again);
byId("anyway").addEventListener("click", () => { anyway = true; again(); });
byId("own-look").addEventListener("click", () => { rerank.checked = true; again(); });
// The photos as a row of keys: arrows move, Enter presses; "/" goes to the question, R re-ranks.
function move(step) {
  const buttons = [...document.querySelectorAll("#groups button.again, #start:not([hidden]) button.again")];
  const now = buttons.indexOf(document.activeElement);
  buttons[now < 0 ? 0 : Math.min(buttons.length - 1, Math.max(0, now + step))]?.focus();
}
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input:not([type=checkbox]), select, summary") || event.ctrlKey || event.metaKey || event.altKey) return;
  const steps = { ArrowLeft: -1, ArrowRight: 1 };
  if (event.key === "/") { event.preventDefault(); if (byId("words")) byId("words").focus(); else file.click(); }
  if (event.key === "r" || event.key === "R") { rerank.checked = !rerank.checked; again(); }
  if (event.key in steps) { event.preventDefault(); move(steps[event.key]); }
});
