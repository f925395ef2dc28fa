// What all pages share: asking the API, words for refusals, following a job, filling tables.
const token = document.querySelector('meta[name="csrf-token"]').content;
const status = document.getElementById("status");

export const byId = (id) => document.getElementById(id);
export const percent = (value) => `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0)}%`;
export const isOwner = document.body.dataset.role === "owner";

export function say(words, bad = false) {
  if (!status) return;
  status.textContent = words;
  status.hidden = !words;
  status.classList.toggle("bad", bad);
}

export class Refusal extends Error {
  constructor(code, message) { super(message); this.code = code; }
}

export async function ask(method, address, body, more = {}) {
  const headers = { "X-CSRF-Token": token, Accept: "application/json", ...more };
  const purpose = byId("purpose")?.value.trim();
  if (purpose) headers["X-Purpose"] = encodeURIComponent(purpose);
  let sent = body;
  if (body instanceof Blob) headers["Content-Type"] = body.type || "application/octet-stream";
  else if (body !== undefined) { headers["Content-Type"] = "application/json"; sent = JSON.stringify(body); }
  const answer = await fetch(address, { method, headers, body: sent, credentials: "same-origin" });
  if (answer.status === 401) { location.assign("/login"); }
  if (!answer.ok) {
    const problem = await answer.json().catch(() => ({ error: "failed", message: "No answer." }));
    throw new Refusal(problem.error, problem.message);
  }
  return answer.status === 204 ? null : answer.json();
}

// Ask again while the workbench is still getting ready.
export async function askWhenReady(method, address, waiting) {
  for (;;) {
    try {
      const found = await ask(method, address);
      if (waiting) say("");
      return found;
    } catch (error) {
      if (error.code !== "preparing" && error.code !== "too_many") throw error;
      say(`${waiting} ${await progressNote()}`);
      await pause(1500);
    }
  }
}

async function progressNote() {
  const jobs = await ask("GET", "/api/jobs").catch(() => []);
  const running = jobs.find((job) => job.state === "running");
  return running ? `(${running.note}, ${running.done} of ${running.total})` : "";
}

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Follow a job to its end; `show` gets every state.
export async function follow(id, show) {
  for (;;) {
    const job = await ask("GET", `/api/jobs/${id}`);
    show(job);
    if (["done", "failed", "stopped", "interrupted"].includes(job.state)) return job;
    await pause(600);
  }
}

export async function latestJob(kind) {
  const jobs = await ask("GET", "/api/jobs");
  return jobs.find((job) => job.kind === kind) ?? null;
}

export function showProgress(job) {
  const bar = byId("bar"), note = byId("note");
  const running = job.state === "running" || job.state === "queued";
  bar.hidden = !running;
  bar.max = Math.max(1, job.total);
  bar.value = job.done;
  const ended = { done: `Ended ${(job.ended ?? "").replace("T", " ").slice(0, 16)} UTC.`, failed: `Failed: ${job.note}.`, stopped: "Stopped.", interrupted: `Interrupted: ${job.note}.` };
  const counted = job.total && !/ of \d/.test(job.note);
  note.textContent = running ? `${job.note}${counted ? ` (${job.done} of ${job.total})` : ""}` : ended[job.state];
}

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") made.className = value; else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function row(cells, attributes = {}) {
  return element("tr", attributes, ...cells.map((cell) => {
    if (cell instanceof Node) return cell;
    return element("td", { class: typeof cell === "number" || /^[\d.,%–ε≥ =-]+$/.test(String(cell)) ? "n" : null }, String(cell));
  }));
}

export function fill(parent, children) { parent.replaceChildren(...children); }

export function picture(image, source) { image.hidden = !source; if (source) image.src = source; }

// A gallery of pictures to press; `choose` gets the position.
export function gallery(parent, pictures, choose, word) {
  const buttons = pictures.map((source, i) => {
    const button = element("button", { type: "button", "aria-label": `${word} ${i + 1}`, "aria-pressed": "false" }, element("img", { src: source, alt: "" }));
    button.addEventListener("click", () => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      choose(i);
    });
    return button;
  });
  fill(parent, buttons);
  return () => buttons.forEach((button) => button.setAttribute("aria-pressed", "false"));
}

// Run an action; a refusal becomes words on the page.
export async function attempt(action) {
  try { await action(); } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    say(error.message, true);
  }
}

export function setBudget(remaining) {
  const shown = document.querySelector("[data-remaining]");
  if (shown) shown.textContent = remaining.toLocaleString("en", { maximumFractionDigits: 4 });
}

export async function refreshBudget(unit) {
  const accounts = await ask("GET", "/api/ledger/accounts");
  const own = accounts.find((account) => account.unit === unit && account.dataset.startsWith("key "));
  if (!own) return;
  setBudget(own.remaining);
}

for (const button of document.querySelectorAll("[data-logout]")) button.addEventListener("click", () => attempt(async () => {
  const answer = await ask("POST", "/logout");
  location.assign(answer?.next ?? "/login");
}));

// A form that asks: its fields as JSON; then the page goes where the answer says.
// By its attribute: a field named "dataset" hides form.dataset.
for (const form of document.querySelectorAll("form[data-post]")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const order = {};
    for (const [name, value] of new FormData(form)) order[name] = value === "true" ? true : form.elements[name]?.type === "number" || name === "epsilon" ? Number(value) : value;
    const button = form.querySelector("[type=submit]");
    if (button) button.disabled = true;
    attempt(async () => go(await ask("POST", form.getAttribute("data-post"), order))).finally(() => { if (button) button.disabled = false; });
  });
}
for (const button of document.querySelectorAll("[data-ask]")) button.addEventListener("click", () => { if (!button.dataset.sure || confirm(button.dataset.sure)) attempt(async () => go(await ask("POST", button.dataset.ask))); });
for (const choice of document.querySelectorAll("select[data-go]")) choice.addEventListener("change", () => location.assign(`${choice.dataset.go}?dataset=${choice.value}`));
for (const choice of document.querySelectorAll("select[data-release]")) choice.addEventListener("change", () => location.assign(`/budget?release=${choice.value}#attack`));

function go(answer) { if (answer?.next && new URL(answer.next, location).pathname + new URL(answer.next, location).search !== location.pathname + location.search) location.assign(answer.next); else location.reload(); }

// A job that the page waits for: its progress, then the page anew.
const waiting = document.querySelector("[data-job]");
if (waiting) attempt(async () => {
  const again = waiting.querySelector("[data-again]");
  const job = await follow(waiting.dataset.job, showProgress);
  if (job.state === "done") location.reload(); else if (again) again.hidden = false;
});
