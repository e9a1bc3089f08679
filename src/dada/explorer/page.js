"use strict";
// Whatever comes from a file is put in by textContent or as a property: it is never markup.

const token = document.querySelector("meta[name=dada-token]").content;
const $ = (selector, within = document) => within.querySelector(selector);
const clamp = (x) => Math.min(1, Math.max(0, x));
const mean = (numbers) => numbers.reduce((a, b) => a + b, 0) / numbers.length;

function make(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function say(words, bad = false) {
  const status = $("#status");
  status.textContent = words;
  status.classList.toggle("bad", bad);
}

async function ask(path, body) {
  const raw = body instanceof Blob;
  const answer = await fetch(path, {
    method: body === undefined ? "GET" : "POST",
    headers: { "X-Dada-Token": token, ...(raw ? {} : { "Content-Type": "application/json" }) },
    body: body === undefined || raw ? body : JSON.stringify(body),
  }).catch(() => { throw new Error("dada explore has ended; start it again in the terminal"); });
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error);
  return content;
}

// A side: the policy as it came, its steps as they are now, and a row for each operation in it.
// A step's value is its own number plus its operation's shift, kept within 0..1.

let spaces = {}, seed = 0, picture = null, active = 0;
const sides = [];

function sideOf(name, policy) {
  const rows = new Map();
  const steps = policy.subpolicies.map((subpolicy) => subpolicy.ops.map((step) => {
    const [low, high] = [step.magnitude].flat().length === 2 ? step.magnitude : [step.magnitude, step.magnitude];
    if (!rows.has(step.op)) rows.set(step.op, { on: true, p: 0, m: 0 });
    return { op: step.op, on: true, p: step.probability, low, high };
  }));
  return { name, policy, steps, rows, edited: false, asked: 0, shown: 0 };
}

function valueOf(side, step) {
  const row = side.rows.get(step.op);
  return {
    on: row.on && step.on,
    probability: clamp(step.p + row.p),
    low: clamp(step.low + row.m),
    high: clamp(step.high + row.m),
  };
}

// `tidy`: without what is switched off. While drawing it stays, never done, so that the other
// operations keep their chances and only what was changed changes.
function policyOf(side, tidy = false) {
  const subpolicies = side.steps.map((steps, i) => ({
    weight: side.policy.subpolicies[i].weight,
    ops: steps.map((step) => {
      const { on, probability, low, high } = valueOf(side, step);
      const magnitude = low === high ? low : [low, high];
      return { op: step.op, probability: on ? probability : 0, magnitude };
    }).filter((_, j) => !tidy || valueOf(side, steps[j]).on),
  }));
  return { ...side.policy, subpolicies };
}

// Draws

let waiting = null;
function redraw(which = [0, 1]) {
  $("#status").classList.remove("bad");
  for (const i of which) sides[i].asked += 1;
  clearTimeout(waiting);
  waiting = setTimeout(() => sides.forEach((_, i) => drawSide(i)), 40);
}

async function drawSide(i) {
  const side = sides[i], article = $(`.side[data-side="${i}"]`);
  if (side.busy || side.shown === side.asked || picture === null) return;
  const wanted = side.asked;
  side.busy = true;
  article.classList.add("busy");
  try {
    const got = await ask("/api/draw", { policy: policyOf(side), picture, seed });
    if (sides[i] === side) show(article, side, got);
  } catch (error) {
    say(error.message, true);
  }
  side.shown = wanted;
  side.busy = false;
  article.classList.remove("busy");
  if (sides[i] === side && side.shown !== side.asked) drawSide(i);
}

function show(article, side, got) {
  side.words = got.words;
  side.rates = got.rates;
  const figures = got.draws.map((draw, n) => {
    const words = draw.words.join(", ") || "left as it is";
    const image = make("img", { src: draw.picture, alt: `Draw ${n + 1}: ${words}` });
    image.onload = () => image.classList.toggle("pixels", image.naturalWidth <= 40);
    return make("figure", {}, image, make("figcaption", { textContent: words }));
  });
  $(".draws", article).replaceChildren(...figures);
  $(".edited", article).textContent = side.edited ? "edited" : "";
  if (sides[active] === side) refreshWords();
  // A problem stays in sight until something else is done.
  if (!$("#status").classList.contains("bad")) say(`${got.draws.length} draws of one picture on each side`);
}

// Controls

function slider(label, key, value, change) {
  const input = make("input", { type: "range", min: 0, max: 1, step: 0.01, value: clamp(value) });
  input.dataset.key = key;
  const shown = make("output", { textContent: clamp(value).toFixed(2) });
  const put = (x) => { input.value = x; shown.textContent = clamp(x).toFixed(2); };
  input.addEventListener("input", () => {
    put(Number(input.value));
    change(Number(input.value));
    edited();
  });
  return Object.assign(make("label", {}, label, shown, input), { put });
}

function toggle(label, key, on, change) {
  const box = make("input", { type: "checkbox", checked: on });
  box.dataset.key = key;
  box.addEventListener("change", () => {
    box.closest(".row").classList.toggle("off", !box.checked);
    change(box.checked);
    edited();
  });
  return make("label", {}, box, ` ${label}`);
}

function edited() {
  sides[active].edited = true;
  redraw([active]);
}

function row(key, name, on, switched, sliders) {
  const words = make("span");
  words.dataset.words = key;
  const made = make("div", { className: on ? "row" : "row off" },
    make("div", { className: "name" }, toggle(name, key, on, switched), words),
    make("div", { className: "sliders" }, ...sliders));
  made.dataset.key = key;
  return made;
}

function operationRow(side, op) {
  const shift = side.rows.get(op), own = side.steps.flat().filter((step) => step.op === op);
  const p = mean(own.map((step) => step.p)), m = mean(own.map((step) => (step.low + step.high) / 2));
  const sliders = [slider("probability", `${op} probability`, p + shift.p, (x) => { shift.p = x - p; listSteps(); })];
  if (hasStrength(side, op)) {
    sliders.push(slider("magnitude", `${op} magnitude`, m + shift.m, (x) => { shift.m = x - m; listSteps(); }));
  }
  return row(op, op, shift.on, (on) => { shift.on = on; listSteps(); }, sliders);
}

function stepRow(side, i, j) {
  const step = side.steps[i][j], shift = side.rows.get(step.op), key = `${i}.${j}`;
  const sliders = [slider("probability", `${key} probability`, step.p + shift.p, (x) => { step.p = x - shift.p; })];
  if (hasStrength(side, step.op)) {
    const ends = step.low === step.high ? ["magnitude"] : ["magnitude from", "to"];
    const pair = ends.map((label, end) => slider(label, `${key} ${label}`, (end ? step.high : step.low) + shift.m, (x) => {
      if (end === 0) step.low = x - shift.m;
      if (end === 1 || ends.length === 1) step.high = x - shift.m;
      if (step.low > step.high) { // the other end comes along
        step.low = step.high = x - shift.m;
        pair[1 - end].put(x);
      }
    }));
    sliders.push(...pair);
  }
  return row(key, step.op, step.on && shift.on, (on) => { step.on = on; }, sliders);
}

function hasStrength(side, op) {
  return spaces[side.policy.space].find((known) => known.op === op).strength;
}

function listOperations() {
  const side = sides[active];
  const often = (op) => side.steps.flat().filter((step) => step.op === op).length;
  const rows = [...side.rows.keys()].sort((a, b) => often(b) - often(a)).map((op) => operationRow(side, op));
  const none = make("p", { className: "hint", textContent: "This policy leaves images as they are." });
  $("#operations").replaceChildren(...(rows.length ? rows : [none]));
  listSteps();
  refreshWords();
}

function listSteps() {
  const side = sides[active];
  if (!$("#details").open) return;
  const shown = side.steps.map((steps, i) => [make("h3", { textContent: `${i + 1}. drawn for ${(100 * side.policy.subpolicies[i].weight).toFixed(1)}% of images` }),
    ...steps.map((_, j) => stepRow(side, i, j))]);
  $("#steps").replaceChildren(...shown.flat());
  refreshWords();
}

function refreshWords() {
  const side = sides[active];
  if (!side.words) return;
  for (const place of document.querySelectorAll("[data-words]")) {
    const [i, j] = place.dataset.words.split(".").map(Number);
    if (Number.isNaN(i)) place.textContent = `done to ${(100 * side.rates[place.dataset.words]).toFixed(0)}% of images`;
    else place.textContent = side.words[i][j].replace(`${side.steps[i][j].op} `, "");
  }
}

function put(i, loaded) {
  sides[i] = sideOf(loaded.name, loaded.policy);
  const choose = $(`.side[data-side="${i}"] select`);
  if (![...choose.options].some((option) => option.value === loaded.name)) {
    choose.append(make("option", { value: loaded.name, textContent: loaded.name }));
  }
  choose.value = loaded.name;
  if (i === active) listOperations();
  redraw([i]);
}

// Pictures

function addPicture(entry, name = entry.name) {
  const input = make("input", { type: "radio", name: "picture", value: entry.id });
  const image = make("img", { src: entry.thumbnail, alt: name, title: name });
  input.addEventListener("change", () => { picture = entry.id; redraw(); });
  $("#pictures").append(make("label", {}, input, image));
  return input;
}

async function take(file) {
  if (file.name.endsWith(".json") || file.type === "application/json") {
    put(active, await ask("/api/load", { text: await file.text() }));
    say("The policy of the file is on the side that is edited");
  } else {
    if (file.size > 32 * 2 ** 20) throw new Error("the picture has more than 32 MB");
    const entry = await ask("/api/picture", new Blob([file]));
    addPicture(entry, file.name).checked = true;
    picture = entry.id;
    redraw();
  }
}

const reporting = (work) => work.catch((error) => say(error.message, true));

function listen() {
  $("#file").addEventListener("change", (event) => {
    for (const file of event.target.files) reporting(take(file));
    event.target.value = "";
  });
  document.addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dragging"); });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dragging"); });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dragging");
    for (const file of event.dataTransfer.files) reporting(take(file));
  });
  $("#again").addEventListener("click", () => { seed += 1; redraw(); });
  $("#reset").addEventListener("click", () => put(active, sides[active]));
  $("#save").addEventListener("click", () => reporting(save()));
  $("#details").addEventListener("toggle", listSteps);
  document.querySelectorAll("[name=active]").forEach((radio) =>
    radio.addEventListener("change", () => { active = Number(radio.value); listOperations(); }));
  document.querySelectorAll(".choose").forEach((choose, i) =>
    choose.addEventListener("change", () => reporting(ask("/api/load", { name: choose.value }).then((got) => put(i, got)))));
}

async function save() {
  const side = sides[active];
  const got = await ask("/api/save", { policy: policyOf(side, true), name: side.name });
  const saved = $("#saved");
  saved.replaceChildren(`Saved as ${got.file}. Whether it helps:`, make("code", { textContent: got.command }));
  saved.hidden = false;
  say(`Saved as ${got.file}`);
}

async function begin() {
  const start = await ask("/api/start");
  spaces = start.spaces;
  const known = [...new Set([...start.sides.map((side) => side.name), ...start.names])];
  document.querySelectorAll(".choose").forEach((choose) =>
    choose.append(...known.map((name) => make("option", { value: name, textContent: name }))));
  start.pictures.forEach((entry) => addPicture(entry));
  const first = $("#pictures input");
  if (first) { first.checked = true; picture = Number(first.value); }
  start.sides.forEach((side) => sides.push(sideOf(side.name, side.policy)));
  start.sides.forEach((side, i) => put(i, side));
  listen();
}

reporting(begin());
