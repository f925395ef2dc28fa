// Tags: a page of photos, the least certain first; pressing a tag corrects it.
import { ask, attempt, byId, element, fill } from "./workbench.js";

const dataset = byId("tags").dataset.dataset;
let start = 0, total = 0;

function tag(photo, label) {
  const button = element("button", { type: "button", class: label.own && label.on ? "own" : label.on ? "sure" : "unsure", "aria-pressed": String(label.on), "aria-label": `${label.name} on ${photo.name}` },
    label.on ? (label.own ? `✓ ${label.name}` : label.name) : label.sure > 0.2 ? `${label.name}?` : `+ ${label.name}`);
  button.addEventListener("click", () => attempt(async () => {
    const changed = await ask("POST", `/api/tags/${dataset}`, { photo: photo.id, tag: label.name, on: !label.on });
    document.querySelector(`[data-photo="${photo.id}"]`).replaceWith(card(changed));
  }));
  return element("li", {}, button);
}

function card(photo) {
  const order = [...photo.tags].sort((a, b) => Number(b.on) - Number(a.on) || b.sure - a.sure);
  const first = order.filter((t) => t.on || (!t.own && t.sure > 0.2)), rest = order.filter((t) => !first.includes(t));
  const more = element("details", {}, element("summary", { "aria-label": `More labels for ${photo.name}` }, "+"), element("ul", { class: "kinds" }, ...rest.map((t) => tag(photo, t))));
  return element("li", { "data-photo": photo.id }, element("img", { src: `/api/datasets/${dataset}/photos/${photo.id}`, alt: photo.name, loading: "lazy" }),
    element("ul", { class: "kinds" }, ...first.map((t) => tag(photo, t))), rest.length ? more : null);
}

async function show() {
  const page = await ask("GET", `/api/tags/${dataset}?start=${start}`);
  total = page.total;
  fill(byId("photos"), page.photos.map(card));
  byId("where").textContent = `${start + 1} to ${start + page.photos.length} of ${total.toLocaleString("en")} photos`;
}

const next = () => attempt(async () => { start = start + 12 < total ? start + 12 : 0; await show(); });
byId("next").addEventListener("click", next);
document.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.target.matches("input, button, a, summary, select")) next(); });
await attempt(show);
