// Federation: start a run, watch its rounds, compare what the aggregator sees with what a user has.
import { ask, attempt, byId, element, fill, follow, latestJob, percent, picture, row, say, showProgress } from "../studio.js";

const form = byId("form"), stop = byId("stop");
let current = null;

function show(job) {
  showProgress(job);
  stop.hidden = !["running", "queued"].includes(job.state) || document.body.dataset.role !== "owner";
  const result = job.result;
  if (!result) return;
  const start = row([0, percent(result.start), "–", "–", "–", "–", "–"]);
  fill(byId("rows"), [start, ...result.rounds.map((r) => row([
    r.round, percent(r.accuracy), `${r.users} of ${result.users}`,
    r.absent.length ? r.absent.map((n) => `user ${n}`).join(", ") : "nobody",
    percent(r.sparsity), Math.round(r.bytes).toLocaleString("en"), r.seconds.toFixed(2)]))]);
  const views = result.views ?? {};
  picture(byId("has"), views.has);
  picture(byId("sees"), views.sees);
  picture(byId("sum"), views.sum);
  byId("user").textContent = views.user ?? 1;
  if (views.bytes) byId("sees-note").textContent = `${views.bytes.toLocaleString("en")} encrypted bytes`;
  fill(byId("disclosure"), (result.disclosure?.sees ?? []).flatMap(([who, what]) => [element("dt", {}, who), element("dd", {}, what)]));
  const proven = result.guarantee?.epsilon;
  document.querySelector("[data-proven]").textContent = proven === "inf" || proven === undefined ? "none without noise" : `ε = ${Number(proven.toFixed(3))}`;
  picture(byId("curve"), job.state === "done" ? `/api/jobs/${job.id}/files/accuracy.svg` : null);
}

async function watch(id) {
  current = id;
  await follow(id, (job) => { if (current === id) show(job); });
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const given = new FormData(form);
  const order = { users: Number(given.get("users")), rounds: Number(given.get("rounds")), dropout: Number(given.get("dropout")), send: given.get("send"), epsilon: given.get("epsilon") ? Number(given.get("epsilon")) : null };
  attempt(async () => { say(""); fill(byId("rows"), []); await watch((await ask("POST", "/api/demo/federation", order)).id); });
});
stop.addEventListener("click", () => attempt(() => ask("POST", `/api/jobs/${current}/stop`)));
await attempt(async () => { const job = await latestJob("demo-federation"); if (job) await watch(job.id); });
