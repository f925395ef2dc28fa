// ---- The page. Every text of the release is put in as text, never as HTML. ----

// The content security policy stops every other connection; this one it does not know.
for (const name of ["RTCPeerConnection", "webkitRTCPeerConnection"]) delete globalThis[name];

const LIMITS = {
  bytes: 60e6, pixels: 60e6, side: 20000, request: 200, vector: 4e6,
  // Of what the owner signed: a signature says who made it, and not that it can be computed with.
  block: 128e6, entries: 200000, cells: 1e6, width: 1e5, id: 1000, operations: 2e10,
};
const byId = (id) => document.getElementById(id);
let about = null; // read once its signature was checked

const page = { book: null, reading: null, networks: [], words: null, ids: [], entries: [], answer: null, key: null, chosen: new Set() };

function element(tag, className, text, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== null && text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

function button(className, text, action) {
  const made = element("button", className, text);
  made.type = "button";
  made.onclick = action;
  return made;
}

const percent = (value) => (value >= 0.995 ? "over 99%" : `${Math.round(100 * value)}%`);
const number = (value) => value.toLocaleString("en");
const entriesText = (count) => (count === 1 ? "One entry has" : `${number(count)} entries share`);
const labelOf = (cell) => (about.labels[cell] ?? []).slice(0, 3).join(", ") || `group ${cell + 1}`;
const shortId = (id) => (about.names === "keep" ? id : id.slice(0, 8));

// ---- Blocks of data: base64 of gzip of (length of the head, head as JSON, arrays) ----

const fromBase64 = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

function demand(holds, problem) {
  if (!holds) throw new Error(`${problem} Ask the owner for a new copy.`);
}

// A few bytes may unpack to more than the memory holds, so they are counted as they come.
async function inflate(bytes) {
  const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")).getReader();
  const parts = [];
  let size = 0;
  for (let { done, value } = await reader.read(); !done; { done, value } = await reader.read()) {
    size += value.length;
    if (size > LIMITS.block) await reader.cancel();
    demand(size <= LIMITS.block, `A part unpacks to more than ${LIMITS.block / 1e6} MB.`);
    parts.push(value);
  }
  return new Blob(parts).arrayBuffer();
}

async function unpack(text) {
  const buffer = await inflate(fromBase64(text));
  demand(buffer.byteLength >= 4, "A part is cut off.");
  const headLength = new DataView(buffer).getUint32(0, true);
  demand(4 + headLength <= buffer.byteLength, "A part is cut off.");
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, headLength)));
  const arrays = {};
  for (const [name, entry] of Object.entries(head)) {
    const { shape, type, start, bytes } = entry ?? {};
    const numbers = Array.isArray(shape) ? [...shape, start, bytes] : [NaN];
    demand(numbers.every((value) => isCount(value, LIMITS.block)), `The array “${name}” states no sizes.`);
    const length = shape.reduce((a, b) => a * b, 1);
    const needed = type === "json" ? bytes : (BYTES[type] ?? NaN) * length + (/^scaled/.test(type) ? 4 * shape[0] : 0);
    const from = 4 + headLength + start;
    demand(needed === bytes && from + bytes <= buffer.byteLength, `The array “${name}” has another size than it states.`);
    arrays[name] = readArray(buffer, from, entry, length);
    demand(type === "json" || arrays[name].every(Number.isFinite), `The array “${name}” holds values that are no numbers.`);
  }
  return arrays;
}

const BYTES = { float32: 4, uint16: 2, uint32: 4, float16: 2, scaled8: 1, scaled16: 2 };
const isCount = (value, most, least = 0) => Number.isInteger(value) && value >= least && value <= most;

function readArray(buffer, start, entry, length) {
  switch (entry.type) {
    case "json": return JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, start, entry.bytes)));
    case "float32": return new Float32Array(buffer, start, length);
    case "uint16": return new Uint16Array(buffer, start, length);
    case "uint32": return new Uint32Array(buffer, start, length);
    case "float16": return Float32Array.from(new Uint16Array(buffer, start, length), fromHalf);
    case "scaled8": return rescaled(buffer, start, entry.shape[0], length, 1);
    case "scaled16": return rescaled(buffer, start, entry.shape[0], length, 2);
    default: throw new Error(`An array has the unknown type ${entry.type}.`);
  }
}

function fromHalf(bits) {
  const exponent = (bits >> 10) & 31;
  if (exponent === 31) return NaN; // infinite, or no number
  const fraction = bits & 1023;
  const size = exponent ? 2 ** (exponent - 25) * (fraction + 1024) : 2 ** -24 * fraction;
  return bits & 32768 ? -size : size;
}

// Whole numbers with one scale for each row. Of 16-bit numbers all low bytes come first: they
// compress better apart.
function rescaled(buffer, start, rows, length, width) {
  const scales = new Float32Array(buffer, start, rows);
  const low = new Uint8Array(buffer, start + 4 * rows, length);
  const high = width === 2 ? new Int8Array(buffer, start + 4 * rows + length, length) : null;
  const perRow = length / rows;
  const result = new Float32Array(length);
  for (let row = 0, i = 0; row < rows; row++) {
    for (let column = 0; column < perRow; column++, i++) {
      const whole = high ? high[i] * 256 + low[i] : (low[i] << 24) >> 24;
      result[i] = whole * scales[row];
    }
  }
  return result;
}

// ---- Who made this ----

const toHex = (bytes) =>
  Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");
const sha256 = async (bytes) => toHex(await crypto.subtle.digest("SHA-256", bytes));

// The data of this page against the owner's signature: [true, fingerprint], [false, problem] or
// [null, why it cannot be told].
async function checkSignature() {
  const seal = JSON.parse(byId("seal").textContent);
  if (!seal) return [null, "This release is not signed."];
  if (!globalThis.crypto?.subtle) return [null, "This browser cannot check signatures here."];
  const encoder = new TextEncoder();
  try {
    const key = await crypto.subtle.importKey("raw", fromBase64(seal.key), "Ed25519", false, ["verify"]);
    const signed = encoder.encode(seal.statement);
    if (!await crypto.subtle.verify("Ed25519", key, fromBase64(seal.signature), signed)) {
      return [false, "The signature does not fit."];
    }
    for (const [name, digest] of Object.entries(JSON.parse(seal.statement).blocks)) {
      if (await sha256(encoder.encode(byId(name).textContent)) !== digest) {
        return [false, `The part “${name}” was changed after signing.`];
      }
    }
    const fingerprint = (await sha256(fromBase64(seal.key))).slice(0, 32);
    return [true, fingerprint.match(/.{4}/g).join(" ")];
  } catch (error) {
    return [null, `This browser cannot check the signature (${error.name}).`];
  }
}

// ---- Whether the parts fit each other. What is signed may still be wrong, or meant to do harm. ----

function checkAbout({ release, names, pictures, size, networks, vector, book, labels }) {
  const text = (value, most) => typeof value === "string" && value.length <= most;
  demand(text(release, 200) && ["random", "keep"].includes(names), "The release has no number.");
  demand(typeof pictures === "boolean" && isCount(size, 1024), "The size of pictures is not stated.");
  demand(Array.isArray(networks) && networks.length <= 2, "There is no list of networks.");
  demand(pictures || (isCount(vector?.length, LIMITS.width, 1) && text(vector.encoder, 1000)),
    "The length of vectors is not stated.");
  demand(!pictures || size, "The size of pictures is not stated.");
  demand(["groups", "pairs", "classes", "labels", "bits"].includes(book?.kind), "The kind of groups is not known.");
  const bits = book.kind === "bits";
  demand(isCount(book.k, LIMITS.cells, bits ? 0 : 2) && isCount(book.width, LIMITS.width, 1), "The number of groups does not fit.");
  demand(bits || (book.epsilon > 0 && book.epsilon < 1e6 && book.relevant > 0 && book.relevant < 1
    && (book.slope === null || Number.isFinite(book.slope))), "What is stated of the noise does not fit.");
  demand(Array.isArray(labels) && labels.length <= book.k
    && labels.every((list) => Array.isArray(list) && list.every((label) => text(label, LIMITS.id))), "The names of groups do not fit.");
}

function checkNetworks() {
  let features = page.networks.length ? 0 : 3 * about.size ** 2;
  let operations = 0;
  for (const { size, layers } of page.networks) {
    demand(isCount(size, 1024, 1) && Array.isArray(layers) && layers.length <= 500, "The network does not fit.");
    let [side, channels, entering] = [size, 3, ""];
    for (const { side: reach, stride, pad, depthwise, starts, adds, kernel, bias } of layers) {
      demand([1, 3, 5].includes(reach) && [1, 2].includes(stride) && isCount(pad, 4) && kernel && bias?.length,
        "A layer of the network does not fit.");
      if (starts) entering = `${side} ${channels}`;
      const inputs = depthwise ? 1 : channels;
      demand(kernel.length === bias.length * inputs * reach ** 2 && (!depthwise || bias.length === channels),
        "A layer of the network does not fit.");
      if (reach > 1) side = Math.ceil(side / stride);
      channels = bias.length;
      operations += side * side * kernel.length;
      demand(!adds || entering === `${side} ${channels}`, "A layer of the network does not fit.");
    }
    features += channels;
  }
  demand(operations <= LIMITS.operations, "The network is too large.");
  return about.pictures ? features : about.vector.length;
}

function checkBook(book, signs, features) {
  const rows = (array, width) => (array && array.length % width === 0 ? array.length / width : NaN);
  const below = (array, most) => array.every((value) => value < most);
  const { kind, k, width } = book;
  const fits = (holds) => demand(holds, "The groups do not fit each other.");
  if (kind === "bits") {
    fits(rows(book.weights, width) === features && book.offset?.length === width && (signs?.length ?? 0) === k * width);
    return;
  }
  fits(rows(book.axes, width) === features && book.centre?.length === width);
  fits(!book.classes || rows(book.classes, width) > 0);
  const atoms = rows(book.atoms, width);
  if (kind === "groups") {
    fits(atoms > 0 && book.group?.length === atoms && below(book.group, k) && new Set(book.group).size === k);
  } else if (kind === "pairs") {
    fits(atoms > 0 && book.neighbours?.length === k && k % atoms === 0 && below(book.neighbours, atoms));
    fits(book.norms?.length === k && book.norms.every((value) => value > 0));
  } else {
    const classes = rows(book.coefficients, width);
    fits(classes > 0 && book.intercept?.length === classes);
    fits(book.groups ? book.groups.length === k * classes : k === classes);
  }
}

function checkEntries({ ids, cells }) {
  demand(Array.isArray(ids) && ids.length <= LIMITS.entries, `There are more than ${number(LIMITS.entries)} entries.`);
  demand(ids.every((id) => typeof id === "string" && id.length <= LIMITS.id), "The ids of the entries are no texts.");
  demand(cells?.length === ids.length && cells.every((cell) => cell < page.book.k), "An entry names a group that does not exist.");
}

function checkWords({ vocabulary, vectors, classVectors, classNames, hyponyms }) {
  const texts = (list) => Array.isArray(list) && list.length > 0 && list.every((word) => typeof word === "string");
  const width = vectors?.length / vocabulary?.length;
  const { stopWords, typicalNorm, temperature, hyponymShare } = about;
  demand(texts(vocabulary) && texts(classNames) && texts(stopWords) && isCount(width, LIMITS.width, 1)
    && classVectors?.length === classNames.length * width
    && page.book.classes?.length === classNames.length * page.book.width
    && typicalNorm > 0 && temperature > 0 && hyponymShare >= 0 && hyponymShare <= 1
    && Object.values(hyponyms ?? { none: null }).every((list) =>
      Array.isArray(list) && list.every((cls) => isCount(cls, classNames.length - 1))),
  "The words do not fit each other.");
}

async function start() {
  const [valid, message] = await checkSignature();
  const box = byId("signature");
  if (valid) {
    box.append(
      element("p", null, "Signed, and unchanged since. Compare with what the owner told you:"),
      element("div", "fingerprint", message),
    );
  } else {
    box.append(element("p", valid === false ? "problem" : "quiet", message));
  }
  if (valid === false) {
    showProblem("Do not use this page", `${message} Ask the owner for a new copy.`);
    return;
  }
  about = JSON.parse(byId("about").textContent);
  checkAbout(about);
  const names = ["network", "book", "codes", "words"];
  const [network, book, codes, words] = await Promise.all(
    names.map((name) => (byId(name) ? unpack(byId(name).textContent) : null)),
  );
  page.networks = about.networks.map(({ prefix, size, layers }) => ({
    size,
    layers: layers.map((layer, i) => ({
      ...layer, kernel: network?.[`${prefix}${i}.kernel`], bias: network?.[`${prefix}${i}.bias`],
    })),
  }));
  page.book = { ...book, ...about.book };
  page.book.classes ??= page.book.atoms;
  checkBook(page.book, codes.signs, checkNetworks());
  checkEntries(codes);
  if (words) checkWords(words);
  for (const each of page.networks) each.layers = each.layers.map((layer) => laidOut(layer));
  page.words = words;
  page.ids = codes.ids;
  page.entries = Array.from({ length: page.book.k }, () => []);
  codes.cells.forEach((cell, entry) => page.entries[cell].push(entry));
  const counts = Float64Array.from(page.entries, (list) => list.length);
  page.signs = codes.signs;
  page.reading = page.book.kind === "bits"
    ? { counts, total: codes.ids.length, trust: null }
    : readCells(page.book, counts);
  byId("search").disabled = false;
  if (!words) {
    byId("words-field").hidden = true;
    byId("or").hidden = true;
  }
  showOverview();
  document.body.dataset.ready = "yes";
}

function showProblem(title, text) {
  byId("results").replaceChildren(element("section", "card", null, element("h2", null, title), element("p", null, text)));
}

// ---- What is inside ----

function estimates() {
  const { counts, total, truth, lie } = page.reading;
  const kept = truth - lie;
  const kinds = [];
  counts.forEach((count, cell) => {
    if (!count) return;
    const size = Math.max(0, Math.min(total, (count - total * lie) / kept));
    const error = Math.sqrt(size * truth * (1 - truth) + (total - size) * lie * (1 - lie)) / kept;
    kinds.push({
      cell, size,
      low: Math.max(0, size - 1.96 * error),
      high: Math.min(total, size + 1.96 * error),
      certain: count - total * lie > 2 * Math.sqrt(total * lie) + 1,
    });
  });
  return kinds.filter((kind) => kind.certain).sort((a, b) => b.size - a.size);
}

function showOverview(most = 10) {
  const { total } = page.reading;
  if (page.book.kind === "bits") {
    showProblem("What is here", `${number(total)} photos, each with a code of ${page.book.width} bits. ` +
      "Such codes tell which photos are alike, not which kinds there are. Search, and the nearest come first.");
    return;
  }
  const kinds = estimates();
  const shown = kinds.slice(0, most);
  const largest = shown.reduce((top, kind) => Math.max(top, kind.high), 1);
  const card = element("section", "card", null, element("h2", null, "What kinds of photos are here"));
  card.append(element("p", "quiet",
    `Estimated from the noisy codes of all ${number(total)} photos. The bar is the best estimate; ` +
    "the true number lies within the line 19 times in 20."));
  for (const kind of shown) card.append(kindRow(kind, largest));
  if (!shown.length) {
    card.append(element("p", null, "Too few photos, or too much noise, to tell any kind apart."));
  } else {
    const rest = total - shown.reduce((sum, kind) => sum + kind.size, 0);
    card.append(element("p", "quiet",
      (rest > 1 ? `About ${number(Math.round(rest))} photos are of other kinds, with fewer photos each. ` : "") +
      "The names are those of a public classifier. Read them as “roughly like this”."));
  }
  if (kinds.length > shown.length) {
    card.append(button("plain small", `Show all ${kinds.length} kinds that can be told from noise`,
      () => showOverview(Infinity)));
  }
  byId("results").replaceChildren(card);
}

function kindRow(kind, largest) {
  const bar = element("i");
  const line = element("s");
  bar.style.width = `${(100 * kind.size) / largest}%`;
  line.style.left = `${(100 * kind.low) / largest}%`;
  line.style.width = `${(100 * (kind.high - kind.low)) / largest}%`;
  const count = element("span", "count", `about ${number(Math.round(kind.size))} `,
    element("small", null, `${number(Math.ceil(kind.low))}–${number(Math.floor(kind.high))}`));
  const open = button("link", labelOf(kind.cell), () => {
    byId("results").replaceChildren(
      cellCard(kind.cell, "Entries of this kind"),
      element("div", "buttons", null, button("plain", "Back to the overview", () => showOverview())),
    );
  });
  return element("div", "kind", null, open, element("span", "meter", null, bar, line), count);
}

// ---- Hits ----

function chips(list, most) {
  const box = element("ul", "chips");
  const show = (count) => {
    box.replaceChildren(...list.slice(0, count).map((entry) => {
      const id = page.ids[entry];
      const choose = button(null, shortId(id), () => {
        if (!page.chosen.delete(id)) page.chosen.add(id);
        choose.setAttribute("aria-pressed", String(page.chosen.has(id)));
      });
      choose.setAttribute("aria-pressed", String(page.chosen.has(id)));
      const chip = element("li", null, null, choose);
      chip.title = id;
      return chip;
    }));
    if (list.length > count) {
      const more = button("plain small", `${number(list.length - count)} more`, () => show(count + 200));
      box.append(element("li", "more", null, more));
    }
  };
  show(most);
  return box;
}

function expectation(count, trust, score, present) {
  if (!present) return `${entriesText(count)} this code. It is the nearest there is, but not near.`;
  if (page.book.kind === "bits") return `${entriesText(count)} this code. Some of its bits are noise: the order says what is likely to be alike.`;
  if (about.calibrated && score !== undefined) {
    const each = count === 1 ? "It is" : "Each is";
    const all = count > 1 ? `: expect about ${Math.round(count * score)} of ${count}.` : ".";
    return `${entriesText(count)} this code. ${each} of your picture's kind with a probability of ${percent(score)}${all}`;
  }
  if (trust === null) {
    return `${entriesText(count)} this code. With this much noise nobody can tell which codes are true.`;
  }
  if (count === 1) return `One entry. Its code is the photo's own with a probability of ${percent(trust)}; otherwise it is noise.`;
  const real = Math.round(count * trust);
  if (real >= count) return `${number(count)} entries share this code. Expect all of them, or all but one, to be truly of this kind.`;
  return `${number(count)} entries share this code. Expect about ${number(real)} of them to be truly of this kind; ` +
    "the others are noise, and nobody can tell which.";
}

function cellCard(cell, place, score, present = true) {
  const list = page.entries[cell];
  const trust = page.reading.trust ? page.reading.trust[cell] : null;
  return element("section", "card", null,
    element("p", "place", place),
    element("p", "label", null, element("small", null, about.labels[cell]?.length ? "roughly " : ""), labelOf(cell)),
    element("p", "expectation", expectation(list.length, trust, score, present)),
    chips(list, 24));
}

function rank(similarities, words) {
  const bits = page.book.kind === "bits";
  const scores = bits ? similarities : scoresOf(similarities, page.reading);
  const cells = rankedCells(scores, page.reading.counts);
  const { trust } = page.reading;
  return {
    present: bits || isPresent(similarities, page.reading, words),
    cells, scores,
    hits: cells.flatMap((cell) => page.entries[cell].map((entry) => ({
      id: page.ids[entry], cell, score: scores[cell], trust: trust ? trust[cell] : null,
    }))),
  };
}

function showAnswer(answer, query, meaning) {
  page.answer = { ...answer, query };
  page.chosen.clear();
  const { present, cells, scores } = answer;
  const parts = [];
  if (!present) {
    parts.push(element("section", "card nothing", null,
      element("h2", null, "Nothing like this here"),
      element("p", null, "As far as the noisy codes tell, no photo here is like what you asked for. The nearest follow.")));
  }
  if (meaning) {
    parts.push(element("p", "quiet", `Searched for: ${meaning.names.join(", ")}.` +
      (meaning.unknown.length ? ` Unknown words, left out: ${meaning.unknown.join(", ")}.` : "")));
  }
  cells.slice(0, 3).forEach((cell, i) =>
    parts.push(cellCard(cell, ["Nearest", "Next", "Third"][i], scores[cell], present)));
  if (cells.length > 3) parts.push(furtherCells(cells.slice(3, 23)));
  parts.push(requestCard());
  byId("results").replaceChildren(...parts);
}

function furtherCells(cells) {
  const count = cells.reduce((sum, cell) => sum + page.entries[cell].length, 0);
  const box = element("details", "card", null,
    element("summary", null, `Further: ${number(count)} entries in ${cells.length} more groups`));
  box.ontoggle = () => {
    if (!box.open || box.children.length > 1) return;
    for (const cell of cells) {
      const { trust } = page.reading;
      const size = page.entries[cell].length;
      box.append(
        element("h3", null, labelOf(cell)),
        element("p", "quiet", (size === 1 ? "one entry" : `${number(size)} entries`) +
          (trust ? `, each true with a probability of ${percent(trust[cell])}` : "")),
        chips(page.entries[cell], 12));
    }
  };
  return box;
}

// ---- Asking the owner ----

// The entries that were chosen by a click, or the best ones where none was.
function requestedIds() {
  const ids = page.answer.hits.map((hit) => hit.id);
  const chosen = ids.filter((id) => page.chosen.has(id));
  return (chosen.length ? chosen : ids).slice(0, LIMITS.request);
}

// Signed with a key of this page, made when it was opened: the owner sees that two requests come
// from one receiver, and that nobody changed them on their way.
async function requestFile(message) {
  const ids = requestedIds();
  const fields = { format: "blindsight request 1", release: about.release, query: page.answer.query, message, ids };
  try {
    page.key ??= await crypto.subtle.generateKey("Ed25519", false, ["sign", "verify"]);
    const signed = new TextEncoder().encode(JSON.stringify([fields.format, fields.release, message, ...ids]));
    fields.key = toHex(await crypto.subtle.exportKey("raw", page.key.publicKey));
    fields.signature = toHex(await crypto.subtle.sign("Ed25519", page.key.privateKey, signed));
  } catch {
    // A browser that cannot sign saves the request without a signature, and the owner is told.
  }
  return JSON.stringify(fields, null, 1);
}

async function fingerprintOfKey() {
  if (!page.key) return "";
  const key = await crypto.subtle.exportKey("raw", page.key.publicKey);
  return (await sha256(key)).slice(0, 32).match(/.{4}/g).join(" ");
}

function requestCard() {
  const count = Math.min(page.answer.hits.length, 50);
  const message = element("textarea");
  message.id = "message";
  message.maxLength = 2000;
  message.rows = 3;
  const label = element("label", "field-label", "What do you need these photos for?");
  label.htmlFor = "message";
  const copied = element("p", "quiet");
  copied.setAttribute("role", "status");
  const ids = () => page.answer.hits.slice(0, 50).map((hit) => hit.id).join("\n");
  return element("section", "card", null,
    element("h2", null, "Ask the owner"),
    element("p", "quiet", "Click the entries that you want; without a choice the best ones are asked for. Only the owner has the photos, and decides what to hand over. Send the file yourself; this page sends nothing."),
    label, message,
    element("div", "buttons", null,
      button("", "Save a request", async () => {
        const link = element("a");
        link.href = URL.createObjectURL(new Blob([await requestFile(message.value)], { type: "application/json" }));
        link.download = "request.json";
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 1000);
        const signer = await fingerprintOfKey();
        copied.textContent = signer ? `Saved. Tell the owner that it is signed by ${signer}.` : "Saved, without a signature.";
      }),
      button("plain", `Copy the ids of the first ${count}`, async () => {
        try {
          await navigator.clipboard.writeText(ids());
          copied.textContent = "Copied.";
        } catch {
          copied.textContent = "This browser does not let a local page copy. Save a request instead.";
        }
      }),
      button("plain", "Back to the overview", () => showOverview())),
    copied);
}

// ---- Queries ----

// Width and height of a JPEG, PNG, GIF or WebP from its first bytes; null for other formats.
function sizeInHeader(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (bytes.length > 24 && view.getUint32(0) === 0x89504e47) return [view.getUint32(16), view.getUint32(20)];
  if (bytes.length > 10 && view.getUint32(0) === 0x47494638) return [view.getUint16(6, true), view.getUint16(8, true)];
  if (bytes.length > 4 && view.getUint16(0) === 0xffd8) {
    for (let at = 2; at + 9 < bytes.length && bytes[at] === 0xff;) {
      const marker = bytes[at + 1];
      const frame = marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker);
      if (frame) return [view.getUint16(at + 7), view.getUint16(at + 5)];
      at += 2 + view.getUint16(at + 2);
    }
  }
  return null;
}

async function decode(file) {
  if (file.size > LIMITS.bytes) throw new Error("It is larger than 60 MB.");
  const tooLarge = ([width, height]) => width * height > LIMITS.pixels || Math.max(width, height) > LIMITS.side;
  // Before decoding: a small file may claim a picture that fills the memory.
  const claimed = sizeInHeader(new Uint8Array(await file.slice(0, 1 << 18).arrayBuffer()));
  if (claimed && tooLarge(claimed)) throw new Error("It has more than 60 million pixels.");
  const bitmap = await createImageBitmap(file, {
    colorSpaceConversion: "none", premultiplyAlpha: "none", imageOrientation: "from-image",
  });
  const { width, height } = bitmap;
  if (tooLarge([width, height])) throw new Error("It has more than 60 million pixels.");
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  return { pixels: context.getImageData(0, 0, width, height).data, width, height };
}

const pause = () => new Promise((resolve) => setTimeout(resolve));

async function featuresOf(picture) {
  const square = resize(picture.pixels, picture.width, picture.height, about.size, 4);
  if (!page.networks.length) return Float64Array.from(square, (value) => value / 255);
  const parts = [];
  for (const { size, layers } of page.networks) {
    const input = size === about.size ? square : resize(square, about.size, about.size, size, 3);
    parts.push(await runNetwork(input, size, layers, pause));
  }
  if (parts.length === 1) return parts[0];
  const all = parts.map((part) => Array.from(unit(withoutMean(part)))).flat();
  return Float64Array.from(all);
}

async function searchPicture(file) {
  if (!about.pictures) return searchFeatures(unit(readVector(file.name, await readSmall(file))));
  return searchFeatures(await featuresOf(await decode(file)));
}

function searchFeatures(features) {
  if (page.book.kind === "bits") return rank(bitScores(features, page.book, page.signs), false);
  return rank(similarity(embed(features, page.book), page.book), false);
}

async function readSmall(file) {
  if (file.size > LIMITS.vector) throw new Error("It is too large for one vector.");
  return file.arrayBuffer();
}

// One vector: a JSON list of numbers, or an .npy file of 32- or 64-bit floats.
function readVector(name, buffer) {
  const values = /\.json$/i.test(name) ? readJsonVector(buffer) : readNpyVector(buffer);
  const { length, encoder } = about.vector;
  if (values.length !== length) {
    throw new Error(`A vector of ${encoder} has ${length} numbers, this one has ${values.length}.`);
  }
  if (!values.every(Number.isFinite)) throw new Error("It holds values that are no numbers.");
  return values;
}

function readJsonVector(buffer) {
  const list = JSON.parse(new TextDecoder().decode(buffer));
  const row = Array.isArray(list) && Array.isArray(list[0]) && list.length === 1 ? list[0] : list;
  if (!Array.isArray(row) || !row.every((value) => typeof value === "number")) {
    throw new Error("It is not a list of numbers.");
  }
  return Float64Array.from(row);
}

function readNpyVector(buffer) {
  const bytes = new Uint8Array(buffer);
  const magic = [0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59];
  if (bytes.length < 12 || magic.some((value, i) => bytes[i] !== value)) throw new Error("It is not an .npy file.");
  const view = new DataView(buffer);
  const [start, length] = bytes[6] === 1 ? [10, view.getUint16(8, true)] : [12, view.getUint32(8, true)];
  const head = new TextDecoder().decode(bytes.subarray(start, start + length));
  const type = /'descr': '<f([48])'/.exec(head);
  const shape = /'shape': \((?:1, )?(\d+),?\)/.exec(head);
  if (!type || !shape) throw new Error("It must hold one row of 32- or 64-bit floats.");
  const size = Number(type[1]);
  const count = Number(shape[1]);
  if (start + length + size * count !== bytes.length) throw new Error("It is cut off.");
  return Float64Array.from({ length: count }, (_, i) =>
    (size === 4 ? view.getFloat32(start + length + 4 * i, true) : view.getFloat64(start + length + 8 * i, true)));
}

// Words as weights on the public classes; words that are not known are named, not guessed.
function meaningOf(text) {
  const { vocabulary, vectors, classVectors, classNames, hyponyms } = page.words;
  const width = vectors.length / vocabulary.length;
  const numberOf = new Map(vocabulary.map((word, i) => [word, i]));
  const words = text.toLowerCase().match(/[a-z]+(?:['-][a-z]+)*/g) ?? [];
  const sum = new Float64Array(width);
  const unknown = [];
  const known = [];
  for (let at = 0; at < words.length;) {
    const length = [3, 2, 1].find((count) => at + count <= words.length && formOf(words.slice(at, at + count), numberOf));
    if (!length) {
      if (!about.stopWords.includes(words[at])) unknown.push(words[at]);
      at++;
      continue;
    }
    const form = formOf(words.slice(at, at + length), numberOf);
    at += length;
    if (about.stopWords.includes(form)) continue;
    known.push(form);
    const row = numberOf.get(form) * width;
    for (let i = 0; i < width; i++) sum[i] += length * vectors[row + i];
  }
  if (!known.length) return { unknown, names: [], weights: null };
  const direction = unit(sum).map((value) => value * about.typicalNorm);
  const likeness = innerProducts(direction, classVectors);
  const largest = likeness.reduce((a, b) => Math.max(a, b));
  let weights = likeness.map((value) => Math.exp((value - largest) / about.temperature));
  const total = weights.reduce((a, b) => a + b);
  weights = weights.map((value) => value / total);
  const below = known.map((word) => hyponyms[word]).filter((classes) => classes?.length);
  if (below.length) weights = withHyponyms(weights, below);
  const best = [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, 3);
  const nouns = known.filter((word) => hyponyms[word]?.length > 1);
  const covered = new Set(nouns.flatMap((word) => hyponyms[word]));
  const names = [...nouns, ...best.filter((cls) => !covered.has(cls)).map((cls) => classNames[cls])];
  return { unknown, names: names.slice(0, 4), weights };
}

function formOf(words, numberOf) {
  const phrase = words.join(" ");
  const singular = phrase.replace(/ies$/, "y").replace(/(ss|sh|ch|x)es$/, "$1").replace(/([^s])s$/, "$1");
  return [phrase, singular].find((form) => numberOf.has(form));
}

// Among the classes below a noun, those that fit the whole text count more.
function withHyponyms(weights, below) {
  const largest = weights.reduce((a, b) => Math.max(a, b));
  const meant = new Float64Array(weights.length);
  for (const classes of below) {
    const share = classes.map((cls) => weights[cls] + largest / classes.length / 10);
    const total = share.reduce((a, b) => a + b);
    classes.forEach((cls, i) => { meant[cls] += share[i] / total / below.length; });
  }
  return weights.map((value, cls) => (1 - about.hyponymShare) * value + about.hyponymShare * meant[cls]);
}

function searchWords(text) {
  const meaning = meaningOf(text);
  if (!meaning.weights) return { meaning };
  const { book } = page;
  const point = seenFrom(unit(product(meaning.weights, book.classes, book.width)), book.centre);
  return { meaning, answer: rank(similarity(point, book), true) };
}

async function askPicture(file) {
  byId("text").value = "";
  if (about.pictures) {
    const picture = element("img");
    picture.alt = "Your picture";
    picture.src = URL.createObjectURL(file);
    byId("shown").replaceChildren(picture, element("b", null, "Choose another picture"));
  } else {
    byId("shown").replaceChildren(element("b", null, file.name.slice(0, 80)));
  }
  byId("status").textContent = "Searching …";
  await pause();
  const began = performance.now();
  try {
    showAnswer(await searchPicture(file), { picture: true });
    byId("status").textContent = `Searched in ${Math.round(performance.now() - began)} ms, on this machine.`;
  } catch (error) {
    const what = about.pictures ? "picture" : "vector";
    byId("status").textContent = `This ${what} cannot be read. ${error.message || ""}`;
  }
}

function askWords(text) {
  byId("shown").replaceChildren(...emptyDrop.map((node) => node.cloneNode(true)));
  byId("file").value = "";
  const { meaning, answer } = searchWords(text);
  if (!answer) {
    showProblem("These words are not known here",
      `This page knows ${number(page.words.vocabulary.length)} everyday English words. Try another word, or a picture.`);
    byId("status").textContent = "";
    return;
  }
  showAnswer(answer, { words: text }, meaning);
  byId("status").textContent = "Searched on this machine.";
}

const emptyDrop = [...byId("shown").childNodes].map((node) => node.cloneNode(true));
for (const kind of ["dragover", "dragleave", "drop"]) {
  addEventListener(kind, (event) => {
    event.preventDefault();
    byId("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop" && about && event.dataTransfer.files[0]) askPicture(event.dataTransfer.files[0]);
  });
}
byId("file").onchange = (event) => event.target.files[0] && askPicture(event.target.files[0]);
addEventListener("paste", (event) => {
  const file = event.clipboardData.files[0];
  if (file && about?.pictures) askPicture(file);
});
byId("form").onsubmit = (event) => {
  event.preventDefault();
  const text = byId("text").value.trim().slice(0, 300);
  if (text && page.words) askWords(text);
};
start().catch((error) => showProblem("This page is damaged", String(error.message)));
