// The table of claims.
import { ask, attempt, byId, element, fill, follow, latestJob, row, say, showProgress } from "../studio.js";

function showAudit(job) {
  showProgress(job);
  const result = job.result;
  if (job.state !== "done" || !result) return;
  byId("headline").textContent = result.headline;
  const table = byId("claims");
  table.hidden = false;
  fill(table.tHead, [element("tr", {}, ...["room", ...result.columns].map((name) => element("th", { scope: "col" }, name)))]);
  fill(table.tBodies[0], result.rows.map((r) => row([r.room, ...r.cells.slice(0, -1), element("td", { class: r.refuted ? "refuted" : "fine" }, r.cells.at(-1))])));
  fill(byId("advice"), result.advice.map((words) => element("li", {}, `${words}.`)));
  byId("downloads").hidden = false;
  for (const link of document.querySelectorAll("[data-file]")) link.href = `/api/jobs/${job.id}/files/${link.dataset.file}`;
  const refuted = result.rows.filter((r) => r.refuted).length;
  document.querySelector("[data-claimed]").textContent = `${result.rows.length} promises judged`;
  document.querySelector("[data-audited]").textContent = `${refuted} refuted`;
}

byId("audit")?.addEventListener("click", () => attempt(async () => {
  say("");
  const job = await ask("POST", "/api/demo/audit", {});
  await follow(job.id, showAudit);
}));
await attempt(async () => { const job = await latestJob("demo-audit"); if (job) await follow(job.id, showAudit); });
