// Tags: ask, see the answer that leaves beside what it hides, and what asking on would reveal.
import { ask, askWhenReady, attempt, byId, element, fill, gallery, isOwner, percent, refreshBudget, row, say } from "../studio.js";

let query = null;
const file = byId("file"), again = byId("again");

const listed = (parent, tags) => fill(parent, tags.length ? tags.map((t) => element("li", {}, t.tag)) : [element("li", {}, "none")]);

async function answer() {
  await attempt(async () => {
    const found = query instanceof Blob
      ? await ask("POST", `/api/demo/tags/upload?beside=${isOwner}`, query)
      : await ask("POST", `/api/demo/tags/ask?query=${query}&beside=${isOwner}`);
    say("");
    listed(byId("tags"), found.tags);
    byId("spent").textContent = `Spent ε = ${found.spent} for this answer; ${found.answers_left.toLocaleString("en")} answers are left.`;
    again.hidden = false;
    if (found.open_tags) listed(byId("open-tags"), found.open_tags);
    if (found.repeats) fill(byId("repeats"), found.repeats.map(([n, share]) => row([n, percent(share),
      element("td", { class: "bar-cell" }, element("progress", { max: "1", value: String(share), "aria-label": percent(share) })),
      `ε = ${n * found.spent}`])));
    await refreshBudget("query");
  });
}

again.addEventListener("click", answer);
await attempt(async () => {
  const about = await askWhenReady("GET", "/api/demo/tags", "The tagger is being trained.");
  const proven = about.guarantee, trained = about.training;
  document.querySelector("[data-proven]").textContent = `ε = ${proven.epsilon}`;
  document.querySelector("[data-audited]").textContent = `ε ≥ ${about.audited}`;
  const facts = { "labels right, private answer": percent(about.answers), "without noise": percent(about.labels), "saying nothing": percent(about.nothing), "training, per record": `ε = ${trained.epsilon.toFixed(2)}, δ = ${trained.delta}` };
  fill(byId("quality-list"), Object.entries(facts).map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  const release = gallery(byId("gallery"), await ask("GET", "/api/demo/tags/pictures"), (i) => { query = i; file.value = ""; answer(); }, "Scene");
  file.addEventListener("change", () => { if (file.files[0]) { query = file.files[0]; release(); answer(); } });
});
