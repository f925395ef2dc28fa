// Compare: check pairs with the learned threshold, or answer pairs: arrows answer, Z undoes.
import { ask, attempt, byId, element, fill } from "./workbench.js";

const dataset = byId("pair").dataset.dataset, address = (photo) => `/api/datasets/${dataset}/photos/${photo}`;
let pair = null, busy = false, mode = document.querySelector("[data-mode]") ? "check" : "answer";

function show(result) {
  pair = result;
  byId("left").src = address(result.one);
  byId("right").src = address(result.other);
  showVerdict(result);
  byId("count").textContent = `Pair ${result.answered + 1}`;
  byId("answered").value = result.answered;
  byId("tally").textContent = `${result.answered} answered: ${result.same} same, ${result.different} different, ${result.unsure} not sure`;
  const learn = byId("learn");
  if (learn && !learn.hasAttribute("data-refused")) learn.disabled = result.same + result.different < Number(learn.dataset.least);
}

// "same, wrong in about 5 of 100": the verdict is bold, the error rate follows.
function showVerdict(result) {
  const [verdict, ...rest] = (result.says ?? "").split(", "), away = element("span", { class: "quiet" }, ` Distance ${result.distance.toFixed(2)}.`);
  if (!verdict) fill(byId("says"), [away]);
  else fill(byId("says"), [element("b", {}, verdict[0].toUpperCase() + verdict.slice(1)), ` ${rest.join(", ")}. By chance 50.`.replace(" wrong", " Wrong"), away]);
}
const judge = (first, second) => ask("GET", `/api/compare/${dataset}/${first}/${second}?point=${encodeURIComponent(point())}`);
const another = () => ask("GET", `/api/compare/${dataset}?point=${encodeURIComponent(point())}`);
const point = () => document.querySelector("input[name=point]:checked")?.value ?? "balanced";

async function say(says) {
  if (!pair || busy) return;
  busy = true;
  await attempt(async () => show(await ask("POST", `/api/compare/${dataset}`, { one: pair.one, other: pair.other, says, point: point() })));
  busy = false;
}

for (const button of document.querySelectorAll("[data-says]")) button.addEventListener("click", () => say(button.dataset.says));
for (const radio of document.querySelectorAll("input[name=point]")) radio.addEventListener("change", () => attempt(async () => {
  for (const part of document.querySelectorAll(".mistakes")) part.hidden = part.dataset.point !== point();
  if (pair) showVerdict(await judge(pair.one, pair.other));
}));
for (const button of document.querySelectorAll("[data-mode]")) button.addEventListener("click", () => {
  mode = button.dataset.mode;
  for (const each of document.querySelectorAll("[data-mode]")) each.setAttribute("aria-pressed", String(each === button));
  for (const part of document.querySelectorAll("[data-in]")) part.hidden = part.dataset.in !== mode;
});
byId("others")?.addEventListener("click", () => attempt(async () => show(await another())));
// The left photo stays; the other one comes from a new pair.
byId("swap")?.addEventListener("click", () => attempt(async () => {
  const next = await another(), other = [next.other, next.one].find((photo) => photo !== pair.one && photo !== pair.other) ?? next.other;
  if (other !== pair.one) show({ ...next, one: pair.one, other, ...(await judge(pair.one, other)) });
}));
document.addEventListener("keydown", (event) => {
  if (mode !== "answer" || event.target.matches("input, select, summary, a") || event.ctrlKey || event.metaKey || event.altKey) return;
  const says = { ArrowLeft: "same", ArrowRight: "different", " ": "unsure", z: "undo", Z: "undo" }[event.key];
  if (!says || (event.key === " " && event.target.matches("button"))) return;
  event.preventDefault();
  say(says);
});
await attempt(async () => show(await another()));
