// Answer a request: read its file, show its photos to the owner, and copy the chosen ones.
import { ask, attempt, byId, element, fill, say } from "./workbench.js";

const LARGEST = 1 << 20;
let request = null;
const set = () => byId("dataset").value;

function decided(requested) {
  const chosen = () => [...byId("answer").querySelectorAll("input:checked")].map((box) => box.value);
  const copy = element("button", { type: "button", id: "copy", disabled: "" }, "Copy the chosen photos into a new folder");
  const photos = requested.photos.map((photo) => {
    const box = element("input", { type: "checkbox", value: photo.id });
    box.addEventListener("change", () => { copy.disabled = !chosen().length; });
    const image = element("img", { src: `/api/datasets/${requested.dataset}/photos/${photo.id}`, alt: photo.name, loading: "lazy" });
    return element("li", {}, element("label", {}, image, box, ` ${photo.name}`));
  });
  copy.addEventListener("click", () => attempt(async () => {
    const copied = await ask("POST", `/api/answers/${set()}/copies`, { request, chosen: chosen() });
    say(`${copied.count === 1 ? "1 photo was" : `${copied.count} photos were`} copied to ${copied.folder}. Send them yourself, or delete the folder.`);
  }));
  const unknown = requested.unknown ? ` ${requested.unknown === 1 ? "1 id is not a photo" : `${requested.unknown} ids are not photos`} of this release.` : "";
  return element("section", { class: "card" },
    element("h2", {}, `Asks for ${requested.photos.length} photo${requested.photos.length === 1 ? "" : "s"} of ${requested.name}`),
    element("p", { class: "quiet" }, requested.signed_by ? `Signed by ${requested.signed_by}: compare with what the sender told you.` : "Not signed: ask the sender whether this request is theirs."),
    element("p", {}, requested.message ? `“${requested.message}”` : "Without a message."),
    element("p", { class: "quiet" }, `The release states ε ${requested.epsilon} per photo; a photo that you hand over is not protected.${unknown}`),
    element("ul", { class: "photos" }, ...photos),
    element("div", { class: "buttons" }, copy));
}

byId("file").addEventListener("change", (event) => attempt(async () => {
  const [file] = event.target.files;
  fill(byId("answer"), []);
  if (!file) return;
  if (file.size > LARGEST) { say("This file is too large to be a request.", true); return; }
  try { request = JSON.parse(await file.text()); } catch { say("This file is not a request that search.html saved.", true); return; }
  fill(byId("answer"), [decided(await ask("POST", `/api/answers/${set()}`, request))]);
  say("");
}));
