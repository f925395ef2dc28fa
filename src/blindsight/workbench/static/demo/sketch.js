// Sketch: original, sent, recovered; dials for leak and accuracy.
import { ask, attempt, byId, gallery, pause, percent, picture, say } from "../studio.js";

let query = 0, facts = {}, turn = 0;
const slider = byId("setting"), file = byId("file");
const setting = () => `Q${slider.value}`;

async function show() {
  const mine = ++turn;
  byId("setting-out").textContent = setting();
  await attempt(async () => {
    const found = query instanceof Blob
      ? await ask("POST", `/api/demo/sketch/upload?setting=${setting()}`, query)
      : await ask("POST", `/api/demo/sketch/show?setting=${setting()}&query=${query}`);
    if (mine !== turn) return;
    say("");
    for (const name of ["original", "sent", "recovered"]) picture(byId(name), found[name]);
    picture(byId("prior"), found.recovered_prior);
    byId("original-note").textContent = `stays here, ${found.bytes_image.toLocaleString("en")} bytes`;
    byId("sent-note").textContent = `counts of each bit, ${found.bytes_sent.toLocaleString("en")} bytes; four planes shown`;
    byId("recovered-note").textContent = `from the counts alone, PSNR ${found.psnr} dB`;
    byId("prior-note").textContent = found.recovered_prior ? "by an attacker with public digits"
      : query instanceof Blob ? "only for the built-in digits" : "being prepared";
    byId("verdict").textContent = found.verdict;
    dial("leak", found.right);
    dial("bit", found.first_bit);
    const fact = facts[setting()];
    if (fact) dial("accuracy", fact.accuracy);
    document.querySelector("[data-audited]").textContent = `${found.psnr} dB recovered`;
    document.querySelector("[data-unit]").textContent = `of this picture at ${setting()}, from the counts alone`;
  });
  if (Object.keys(facts).length) picture(byId("curve"), `/api/demo/sketch/curves.svg?setting=${setting()}`);
}

function dial(name, value) { byId(name).value = value; byId(`${name}-out`).textContent = percent(value); }

slider.addEventListener("input", show);
await attempt(async () => {
  const release = gallery(byId("gallery"), await ask("GET", "/api/demo/sketch/pictures"), (i) => { query = i; file.value = ""; show(); }, "Picture");
  file.addEventListener("change", () => { if (file.files[0]) { query = file.files[0]; release(); show(); } });
  facts = await ask("GET", "/api/demo/sketch");
  byId("gallery").querySelector("button").click();
  while (!Object.keys(facts).length) { await pause(3000); facts = await ask("GET", "/api/demo/sketch"); if (Object.keys(facts).length) show(); }
  byId("curve-note").textContent = "Right is more leak, up is more use. Q3 hides most; from Q6 on the picture is handed over.";
});
