// Train together: poll the state of a run every second; join with an invitation as a file or as text.
import { ask, attempt, byId, element, fill, pause, row, say } from "./workbench.js";

const runCard = byId("run");
const SVG = "http://www.w3.org/2000/svg";

function drawn(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function chart(state) {
  const points = [[0, state.start ?? 0], ...state.rounds.map((line) => [line.round, line.right])];
  // As many units as there are pixels on a phone, so that text keeps its size.
  const width = Math.min(640, Math.max(300, byId("chart").clientWidth || 640)), end = width - 26;
  byId("chart").setAttribute("viewBox", `0 0 ${width} 260`);
  const x = (round) => 44 + ((end - 44) * round) / Math.max(1, state.planned), y = (right) => 216 - 1.96 * right;
  const parts = [];
  for (const level of [0, 25, 50, 75, 100]) {
    parts.push(drawn("line", { x1: 44, x2: end, y1: y(level), y2: y(level), class: "grid" }), drawn("text", { x: 36, y: y(level) + 4, class: "left" }, String(level)));
  }
  const step = Math.max(1, Math.ceil(state.planned / (width / 64)));
  for (let round = 0; round <= state.planned; round += step) parts.push(drawn("text", { x: x(round), y: 236, class: "under" }, round ? String(round) : "start"));
  parts.push(drawn("text", { x: (44 + end) / 2, y: 256, class: "under" }, "round"));
  // In the second half of a run the label of the last round is at the right, and those of the levels are at the left;
  // the labels of levels that are near each other are stacked.
  const [last, right] = points[points.length - 1], late = last > state.planned / 2;
  const levels = [["by chance", state.luck], ...(state.alone === null ? [] : [["your photos alone", state.alone]])].sort((a, b) => b[1] - a[1]);
  levels.forEach(([word, level], i) => {
    const stacked = i > 0 && levels[0][1] - level < 12;
    const above = y(stacked ? levels[0][1] : level) - (stacked ? 22 : 6);
    parts.push(drawn("line", { x1: 44, x2: end, y1: y(level), y2: y(level), class: "alone" }));
    parts.push(drawn("text", { x: late ? 52 : end, y: Math.max(stacked ? 12 : 28, above), class: late ? "alone-word early" : "alone-word" }, `${word}: ${level}`));
  });
  if (points.length > 1) parts.push(drawn("polyline", { points: points.map(([a, b]) => `${x(a)},${y(b)}`).join(" "), class: "line" }));
  for (const [a, b] of points) parts.push(drawn("circle", { cx: x(a), cy: y(b), r: 4.5, class: "dot" }));
  if (last) parts.push(drawn("text", { x: Math.min(x(last), end - 14), y: y(right) + (right > 90 ? 24 : -12), class: late ? "left strong" : "strong" }, `${right} of 100`));
  byId("chart").replaceChildren(...parts);
  byId("chart").setAttribute("aria-label", `Right answers of 100 by round: ${points.map(([a, b]) => `${a ? `round ${a}` : "start"} ${b}`).join(", ")}`);
}

const size = (bytes) => (bytes > 1e6 ? `${(bytes / 1e6).toFixed(1)} MB` : `${Math.max(1, Math.round(bytes / 1e3))} kB`);

function show(state) {
  const done = state.rounds.length;
  byId("run-title").textContent = state.state === "done" ? `${runCard.dataset.title}: ${done} rounds` : `${runCard.dataset.title}: round ${Math.min(done + 1, state.planned)} of ${state.planned}`;
  byId("run-state").textContent = state.state;
  byId("rounds-done").value = done;
  byId("says").textContent = state.says;
  byId("fingerprint-card").hidden = !state.fingerprint;
  byId("fingerprint").textContent = state.fingerprint ?? "";
  chart(state);
  byId("no-rounds").hidden = done > 0;
  fill(byId("rounds"), [...state.rounds].reverse().map((line) => row([
    element("td", {}, element("b", {}, `Round ${line.round}`)), element("td", { "data-word": "Sites that sent" }, line.everybody ? `all ${line.who.length}` : line.who.join(", ")),
    element("td", { "data-word": "Right of 100" }, String(line.right)), element("td", { "data-word": "Took" }, `${line.seconds} s`), element("td", { "data-word": "You sent" }, `${size(line.bytes)}, encrypted`)])));
  fill(byId("sites"), state.sites.map((site) => element("li", { class: site.state }, element("span", { class: "spot", "aria-hidden": "true" }),
    element("div", {}, element("b", {}, site.you ? `${site.name} (you)` : site.name), element("p", { class: "quiet" }, site.says)),
    site.invitation ? element("a", { class: "button plain small", href: site.invitation, download: true, "aria-label": `Invitation for ${site.name}` }, "Invitation") : null)));
  const model = byId("model");
  if (model) model.hidden = state.state !== "done";
}

if (runCard) attempt(async () => {
  let previous = null;
  for (;;) {
    const state = await ask("GET", `/api/together/${runCard.dataset.run}`);
    const text = JSON.stringify(state);
    if (text !== previous) show(state);
    previous = text;
    if (state.state !== "running") {
      if (runCard.dataset.live === "yes" && state.state === "done") location.reload();
      return;
    }
    await pause(1000);
  }
});

byId("join-form")?.addEventListener("submit", (event) => {
  event.preventDefault();
  const file = byId("invitation-file").files[0], text = byId("invitation-text").value.trim();
  if (!file && !text) { say("Choose the file that you were sent, or paste its text.", true); return; }
  const body = file ?? new Blob([text], { type: "text/plain" });
  attempt(async () => { location.assign((await ask("POST", `/api/together/join/upload?dataset=${byId("join-dataset").value}`, body)).next); });
});

byId("two-form")?.addEventListener("submit", (event) => {
  event.preventDefault();
  const file = byId("two-file").files[0];
  attempt(async () => { await ask("POST", `/api/together/two/${event.target.dataset.dataset}/upload`, new Blob([file])); location.reload(); });
});
