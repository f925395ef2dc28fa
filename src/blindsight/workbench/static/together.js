// Train together: the run as it goes, asked for every second; joining by a file or by its text.
import { ask, attempt, byId, element, fill, pause, row, say } from "./workbench.js";

const place = byId("run");
const SVG = "http://www.w3.org/2000/svg";

function drawn(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function chart(found) {
  const points = [[0, found.start ?? 0], ...found.rounds.map((line) => [line.round, line.right])];
  // As many units as there are pixels on a phone, so that text keeps its size.
  const width = Math.min(640, Math.max(300, byId("chart").clientWidth || 640)), end = width - 26;
  byId("chart").setAttribute("viewBox", `0 0 ${width} 260`);
  const x = (round) => 44 + ((end - 44) * round) / Math.max(1, found.planned), y = (right) => 216 - 1.96 * right;
  const parts = [];
  for (const level of [0, 25, 50, 75, 100]) {
    parts.push(drawn("line", { x1: 44, x2: end, y1: y(level), y2: y(level), class: "grid" }), drawn("text", { x: 36, y: y(level) + 4, class: "left" }, String(level)));
  }
  const step = Math.max(1, Math.ceil(found.planned / (width / 64)));
  for (let round = 0; round <= found.planned; round += step) parts.push(drawn("text", { x: x(round), y: 236, class: "under" }, round ? String(round) : "start"));
  parts.push(drawn("text", { x: (44 + end) / 2, y: 256, class: "under" }, "round"));
  // The word of the last round stands at the right in the second half of a run, and those of the levels at the left;
  // levels that are near each other have their words one above the other.
  const [last, right] = points[points.length - 1], late = last > found.planned / 2;
  const levels = [["by luck", found.luck], ...(found.alone === null ? [] : [["your photos alone", found.alone]])].sort((a, b) => b[1] - a[1]);
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

function show(found) {
  const done = found.rounds.length;
  byId("run-title").textContent = found.state === "done" ? `${place.dataset.title}: ${done} rounds` : `${place.dataset.title}: round ${Math.min(done + 1, found.planned)} of ${found.planned}`;
  byId("run-state").textContent = found.state;
  byId("rounds-done").value = done;
  byId("says").textContent = found.says;
  byId("fingerprint-card").hidden = !found.fingerprint;
  byId("fingerprint").textContent = found.fingerprint ?? "";
  chart(found);
  byId("no-rounds").hidden = done > 0;
  fill(byId("rounds"), [...found.rounds].reverse().map((line) => row([
    element("td", {}, element("b", {}, `Round ${line.round}`)), element("td", { "data-word": "Sites that sent" }, line.everybody ? `all ${line.who.length}` : line.who.join(", ")),
    element("td", { "data-word": "Right of 100" }, String(line.right)), element("td", { "data-word": "Took" }, `${line.seconds} s`), element("td", { "data-word": "You sent" }, `${size(line.bytes)}, encrypted`)])));
  fill(byId("sites"), found.sites.map((site) => element("li", { class: site.state }, element("span", { class: "spot", "aria-hidden": "true" }),
    element("div", {}, element("b", {}, site.you ? `${site.name} (you)` : site.name), element("p", { class: "quiet" }, site.says)),
    site.invitation ? element("a", { class: "button plain small", href: site.invitation, download: true, "aria-label": `Invitation for ${site.name}` }, "Invitation") : null)));
  const model = byId("model");
  if (model) model.hidden = found.state !== "done";
}

if (place) attempt(async () => {
  let was = null;
  for (;;) {
    const found = await ask("GET", `/api/together/${place.dataset.run}`);
    const text = JSON.stringify(found);
    if (text !== was) show(found);
    was = text;
    if (found.state !== "running") {
      if (place.dataset.live === "yes" && found.state === "done") location.reload();
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
