// Ledger and audit: accounts, entries, the chain, the table of claims.
import { ask, attempt, byId, element, fill, follow, latestJob, row, say, showProgress } from "./studio.js";

const short = (value) => String(Number(value.toFixed(6)));

async function showAccounts() {
  const accounts = await ask("GET", "/api/ledger/accounts");
  fill(byId("accounts"), accounts.map((a) => row([a.dataset, a.unit, short(a.budget), short(a.spent), a.closed ? "closed" : short(a.remaining)])));
  const entries = await ask("GET", "/api/ledger/entries?last=40");
  fill(byId("entries"), entries.slice(0, 100).map((e) => row([
    e.time.slice(0, 19).replace("T", " "), e.dataset, e.sequence, e.kind, short(e.epsilon), e.unit, e.what,
    element("td", {}, element("code", {}, e.hash.slice(0, 12)))])));
}

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

byId("verify").addEventListener("click", () => attempt(async () => {
  const chains = await ask("POST", "/api/ledger/verify");
  fill(byId("chains"), chains.map((c) => element("li", {}, element("span", { class: c.holds ? "fine" : "refuted" }, c.holds ? "holds" : "DOES NOT HOLD"),
    ` ${c.dataset}: ${c.entries.toLocaleString("en")} entries, head `, element("code", {}, `${c.entries}:${c.head.slice(0, 16)}`))));
}));
byId("audit")?.addEventListener("click", () => attempt(async () => {
  say("");
  const job = await ask("POST", "/api/audit", {});
  await follow(job.id, showAudit);
}));
await attempt(showAccounts);
await attempt(async () => { const job = await latestJob("audit"); if (job) await follow(job.id, showAudit); });
