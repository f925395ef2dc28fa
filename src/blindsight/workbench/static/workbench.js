// What all pages share: calling the API, showing refusals, following a job, filling tables.
const token = document.querySelector('meta[name="csrf-token"]').content;
const status = document.getElementById("status");

export const byId = (id) => document.getElementById(id);
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

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Follow a job to its end; `show` gets every state.
export async function follow(id, show) {
  for (let wait = 100; ; wait = Math.min(600, 1.5 * wait)) {  // poll short jobs often and long ones seldom
    const job = await ask("GET", `/api/jobs/${id}`);
    show(job);
    if (["done", "failed", "stopped", "interrupted"].includes(job.state)) return job;
    await pause(wait);
  }
}

// Show the progress of a job, and its step.
function showProgress(job) {
  const bar = byId("bar"), note = byId("note");
  const running = job.state === "running" || job.state === "queued";
  bar.hidden = !running;
  bar.max = Math.max(1, job.total);
  bar.value = job.done;
  const ended = { done: "Done.", failed: `Failed: ${job.note}`, stopped: "Stopped.", interrupted: `Interrupted: ${job.note}.` };
  note.textContent = running ? `${Math.round((100 * job.done) / bar.max)}% · ${job.note}` : ended[job.state];
}

export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") node.className = value; else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function row(cells, attributes = {}) {
  return element("tr", attributes, ...cells.map((cell) => {
    if (cell instanceof Node) return cell;
    return element("td", { class: typeof cell === "number" || /^[\d.,%–ε≥ =-]+$/.test(String(cell)) ? "n" : null }, String(cell));
  }));
}

export function fill(parent, children) { parent.replaceChildren(...children); }

export function picture(image, source) { image.hidden = !source; if (source) image.src = source; }

// Run an action; a refusal is shown on the page.
export async function attempt(action) {
  try { await action(); } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    say(error.message, true);
  }
}

for (const button of document.querySelectorAll("[data-logout]")) button.addEventListener("click", () => attempt(async () => {
  const answer = await ask("POST", "/logout");
  location.assign(answer?.next ?? "/login");
}));

// A form with data-post: post its fields as JSON, then open the page that the answer names.
// Read by getAttribute, because a field named "dataset" hides form.dataset.
for (const form of document.querySelectorAll("form[data-post]")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const order = {};
    for (const [name, value] of new FormData(form)) {
      const [outer, inner] = name.split(".");  // "roles.ID": a value of an object
      if (inner) (order[outer] ??= {})[inner] = value;
      else order[name] = value === "true" ? true : form.elements[name]?.type === "number" || name === "epsilon" ? Number(value) : value;
    }
    const button = form.querySelector("[type=submit]");
    if (button) button.disabled = true;
    attempt(async () => go(await ask("POST", form.getAttribute("data-post"), order), () => location.reload())).finally(() => { if (button) button.disabled = false; });
  });
}
for (const button of document.querySelectorAll("[data-ask]")) button.addEventListener("click", () => { if (!button.dataset.sure || confirm(button.dataset.sure)) attempt(async () => go(await ask("POST", button.dataset.ask))); });
for (const choice of document.querySelectorAll("select[data-go]")) choice.addEventListener("change", () => location.assign(`${choice.dataset.go}?dataset=${choice.value}`));
for (const choice of document.querySelectorAll("select[data-release]")) choice.addEventListener("change", () => location.assign(`/budget?release=${choice.value}#attack`));

function go(answer, anew = reload) {
  const to = answer?.next ? new URL(answer.next, location) : null;
  if (to && to.pathname + to.search !== location.pathname + location.search) location.assign(to); else anew();
}

// Reload the page and restore what was chosen in it. What a checkbox agrees to may have changed: one with data-anew
// must be ticked again.
const SAVED = `saved ${location.pathname}`;
const fields = () => [...document.querySelectorAll("main :is(input, select:not([data-go], [data-release]), textarea)")].filter((field) => !["hidden", "file", "password"].includes(field.type) && !("anew" in field.dataset) && (field.id || field.name));
const key = (field) => `${field.id || field.name}${field.type === "radio" ? ` ${field.value}` : ""}`;
const chosen = (field) => (field.type === "checkbox" || field.type === "radio" ? field.checked !== field.defaultChecked : field.options ? ![...field.options].every((option) => option.selected === option.defaultSelected) && field.selectedIndex > 0 : field.value !== field.defaultValue);
function reload() {
  const saved = fields().filter(chosen).map((field) => [key(field), field.type === "checkbox" || field.type === "radio" ? field.checked : field.value]);
  sessionStorage.setItem(SAVED, JSON.stringify(saved));
  location.reload();
}
// The same holds for what was typed or chosen before the scripts ran, and for what the browser restored by itself.
document.addEventListener("DOMContentLoaded", () => {
  const saved = new Map(JSON.parse(sessionStorage.getItem(SAVED) ?? "[]"));
  sessionStorage.removeItem(SAVED);
  for (const field of fields()) {
    const value = saved.get(key(field));
    if (value && !field.disabled) { if (value === true) field.checked = true; else field.value = value; }
    if (!chosen(field) || (field.type === "radio" && !field.checked)) continue;
    for (const event of ["input", "change"]) field.dispatchEvent(new Event(event, { bubbles: true }));
  }
});

// Figures that belong to one epsilon are shown while it is chosen.
for (const radio of document.querySelectorAll("input[name=epsilon][type=radio]")) radio.addEventListener("change", () => {
  for (const figure of document.querySelectorAll("[data-at]")) figure.hidden = figure.dataset.at !== radio.value;
});

// Show the progress of the job that the page waits for, then reload the page with the result.
const waiting = document.querySelector("[data-job]");
if (waiting) attempt(async () => {
  const ended = !["queued", "running"].includes(waiting.dataset.state);
  await follow(waiting.dataset.job, showProgress);
  if (!ended) reload();
});
