// Metric: learn, and see the graph, the spaces and the price.
import { ask, attempt, byId, follow, latestJob, percent, picture, say, showProgress } from "../studio.js";

const form = byId("form");
let current = null;

function show(job) {
  showProgress(job);
  if (job.state !== "done" || !job.result.kappa) return;
  const { result } = job;
  for (const name of ["graph", "accuracy", "before", "after"]) picture(byId(name), `/api/jobs/${job.id}/files/${name}.svg`);
  byId("kappa").textContent = result.kappa.second;
  byId("bound").textContent = result.kappa.bound;
  byId("degree").textContent = result.kappa.node;
  byId("scores").textContent = `5-nearest-neighbour accuracy on held-out records: ${percent(result.before)} before, ${percent(result.after)} with this budget, ${percent(result.open)} without privacy. Measured without noise: keep it inside.`;
  document.querySelector("[data-proven]").textContent = `ε = ${Number(result.guarantee.epsilon.toFixed(3))}`;
  const also = result.guarantee.also.map((cost) => `ε = ${Number(cost.epsilon.toFixed(2))} per ${cost.unit}`).join("; ");
  document.querySelector("[data-unit]").textContent = `per ${result.guarantee.unit}; the same run: ${also}`;
}

async function watch(id) { current = id; await follow(id, (job) => { if (current === id) show(job); }); }

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const given = new FormData(form);
  const order = { epsilon: Number(given.get("epsilon")), unit: given.get("unit"), pairs: Number(given.get("pairs")), cycles: given.get("cycles") === "true" };
  attempt(async () => { say(""); await watch((await ask("POST", "/api/demo/metric", order)).id); });
});
await attempt(async () => { const job = await latestJob("demo-metric"); if (job) await watch(job.id); });
