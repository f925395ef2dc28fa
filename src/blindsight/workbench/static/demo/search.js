// Search: choose or upload, re-rank by budget and threshold, side by side with the open ranking.
import { ask, askWhenReady, attempt, byId, element, fill, gallery, isOwner, percent, picture, pause, refreshBudget, row, say } from "../studio.js";

let budgets = [], query = null, turn = 0;
const slider = byId("epsilon"), threshold = byId("threshold"), file = byId("file");
const epsilon = () => budgets[Number(slider.value)].epsilon;

function showHits(list, hits) {
  fill(list, hits.map((hit, rank) => element("li", {},
    hit.picture ? element("img", { src: hit.picture, alt: `Hit ${rank + 1}` }) : element("span", { class: "name" }, String(hit.id)),
    ...(hit.probability === null ? [] : [
      element("progress", { class: "bar", max: "1", value: String(hit.probability), "aria-label": `Probability ${percent(hit.probability)}` }),
      percent(hit.probability)]))));
}

function showBudget() {
  const budget = budgets[Number(slider.value)];
  byId("epsilon-out").textContent = `ε = ${budget.epsilon}`;
  document.querySelector("[data-proven]").textContent = `ε = ${budget.epsilon}`;
  if (budget.audited !== null) document.querySelector("[data-audited]").textContent = `ε ≥ ${budget.audited}`;
  if (budget.map !== null) picture(byId("curve"), `/api/demo/search/curves.svg?epsilon=${budget.epsilon}`);
  fill(byId("budgets"), budgets.map((b) => row(
    [b.epsilon, b.map === null ? "–" : b.map.toFixed(3), b.leak === null ? "–" : percent(b.leak), b.audited === null ? "–" : `ε ≥ ${b.audited}`],
    { "aria-current": b === budget ? "true" : null })));
}

async function search() {
  if (query === null || !budgets.length) return;
  const mine = ++turn;
  await attempt(async () => {
    const options = new URLSearchParams({ epsilon: epsilon(), k: 12, threshold: threshold.value / 100, beside: isOwner });
    let found;
    if (query instanceof Blob) found = await ask("POST", `/api/demo/search/upload?${options}`, query);
    else { options.set("query", query); found = await ask("POST", `/api/demo/search/ask?${options}`); }
    if (mine !== turn) return;
    say("");
    showHits(byId("hits"), found.hits);
    byId("hits-note").textContent = found.hits.length
      ? `The best ${found.hits.length} of ${found.searched.toLocaleString("en")} noisy codes at ε = ${found.epsilon}, with the probability of a match.`
      : "No hit reaches this probability at this budget.";
    if (byId("open-hits") && found.open_hits) showHits(byId("open-hits"), found.open_hits);
    await refreshBudget("record");
  });
}

function takeBudgets(found) {
  const before = budgets.length ? epsilon() : 8;
  budgets = found;
  slider.max = String(budgets.length - 1);
  slider.value = String(Math.max(0, budgets.findIndex((b) => b.epsilon === before)));
  slider.disabled = false;
  fill(byId("epsilon-steps"), budgets.map((b, i) => element("option", { value: i, label: `ε = ${b.epsilon}` })));
  showBudget();
}

slider.addEventListener("input", () => { showBudget(); search(); });
threshold.addEventListener("input", () => { byId("threshold-out").textContent = `${threshold.value}%`; search(); });

await attempt(async () => {
  const about = await askWhenReady("GET", "/api/demo/search", "The gallery is being prepared.");
  takeBudgets(about.budgets);
  if (about.name !== "mnist5k") {
    // An index of one's own has no pictures here: it is asked by upload and shows names.
    for (const id of ["gallery", "open-card", "curves-card"]) if (byId(id)) byId(id).hidden = true;
    byId("hits-note").textContent = `Upload a picture to search ${about.stored.toLocaleString("en")} codes of ${about.name}.`;
  }
  const pictures = await ask("GET", "/api/demo/search/pictures?count=40");
  const release = gallery(byId("gallery"), pictures, (i) => { query = i; file.value = ""; search(); }, "Picture");
  file.addEventListener("change", () => { if (file.files[0]) { query = file.files[0]; release(); search(); } });
  byId("gallery").querySelector("button")?.click();
  for (let n = 0; about.name === "mnist5k" && budgets.length < 5 && n < 120; n += 1) {
    await pause(1500);
    takeBudgets((await ask("GET", "/api/demo/search")).budgets);
  }
});
