// The page around the drawing: passes, tabs, details, search, tables.

const DATA = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const last = DATA.passes.length - 1;
const state = { pass: last, tab: "graph", node: "", every: false };
const TABS = [["graph", "Graph"], ["tensors", "Quantized tensors"], ["decisions", "Decisions"], ["errors", "Errors"], ["saved", "Saved"], ["code", "Code"], ["diff", "Diff"], ["halves", "Halves"]];

function el(tag, props, ...children) {
  const node = Object.assign(document.createElement(tag), props || {});
  node.append(...children.filter(c => c !== null && c !== undefined && c !== ""));
  return node;
}
function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [k, v] of Object.entries(attributes || {})) node.setAttribute(k, v);
  node.append(...children);
  return node;
}
const current = () => DATA.passes[state.pass];
const recordsOf = pass => pass.nodes.map(i => DATA.records[i]);
const find = (name, pass = current()) => recordsOf(pass).find(r => r.name === name);
const total = pass => pass.saved.reduce((s, x) => s + x.nbytes, 0);
const short = (text, width) => text.length > width ? text.slice(0, width - 1) + "…" : text;

// Text of a box cut to a width; fonts as in the style sheet.
const FAMILY = getComputedStyle(document.body).fontFamily, MONO = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace';
const FONTS = { label: "600 14px " + FAMILY, type: "12px " + MONO, note: "11px " + FAMILY };
const ink = document.createElement("canvas").getContext("2d");
function textWidth(text, font) { ink.font = font; return ink.measureText(text).width; }
function cut(text, font, width) {
  let length = text.length;
  while (length > 1 && textWidth(short(text, length), font) > width) length--;
  return short(text, length);
}

// What was measured of the nodes after the last pass; a number that is not finite is text.
const MEASURED = new Map(DATA.measures.nodes.map(m => [m.node, m]));
const number = x => typeof x === "string" ? x : x === 0 ? "0" : Math.abs(x) < 1e-3 || Math.abs(x) >= 1e5 ? x.toExponential(2) : String(+x.toPrecision(3));
const percent = x => typeof x === "string" ? x : number(100 * x) + " %";
const cosine = x => typeof x === "string" ? x : x.toFixed(5);

// The tensor of which a node holds the int8 copy: an argument or parameter, also behind reshapes, or a result.
function tensorOf(r, pass = current()) {
  const read = find(r.scale ? r.scale.tensor : r.inputs[0], pass);
  let of = read;
  while (of.plumbing && of.code) of = find(of.inputs[0], pass);
  return of.meaning ? of : read;
}
function subject(r, pass = current()) {
  const of = tensorOf(r, pass);
  return of.meaning ? of.meaning.replace(/^\w+ /, "").split(".").slice(-2).join(".") : of.name;
}
// What a box is called; a quantize node "mm_out → int8".
function label(r) {
  const integers = r.scale && " → int" + r.scale.bits;
  if (integers) return cut(subject(r), FONTS.label, COPY - 13 - textWidth(integers, FONTS.label)) + integers;
  if (r.op === "tangent") return "∂ output";
  if (r.meaning) return r.meaning.replace(/^\w+ /, "") || r.op;
  if (r.kind) return r.kind === "typed_mm" ? r.form : r.primitive;
  return r.op.split(".")[r.op.startsWith("torch.ops") ? 3 : 1] || r.op;
}

// A saved value by its name; one of several results by the call that gives it.
function dtype(type) { return type.replaceAll("bfloat16", "bf16").replaceAll("float32", "f32").replaceAll("int64", "i64"); }
function savedLabel(r) {
  const from = /^getitem/.test(r.name) && find(r.inputs[0]);
  return from ? label(from) + /\[\d+\]$/.exec(r.code)[0] : r.name;
}

// The third line of a box: scale and error of an int8 copy, the error of what computes on integers and of a gradient.
function noteOf(n) {
  if (n.r && isStructure(n.r)) return n.r.line;
  const m = MEASURED.get(n.name), reads = n.reads.length ? "with " + n.reads.join(", ") : "";
  if (n.lane === "s" || !m || state.pass !== last && !n.r) return n.lane === "s" ? "" : reads;
  if (m.scale !== null) return `scale ${number(m.scale)}, off by ${percent(m.relative)}`;
  if (n.gradient || n.r && n.r.precision === "int8") return `off by ${percent(m.relative)}`;
  return reads;
}
// The quantize node whose integers a node holds, behind reshapes and the results of a call.
function copyBehind(r) {
  for (let x = r; x; x = find(x.inputs[0])) {
    if (x.precision === "quantize") return x;
    if (!(x.plumbing && isInteger8(x))) return null;
  }
  return null;
}

// Node names that the pass before did not have, or that it computed otherwise.
function changedNames() {
  if (!state.pass) return new Set();
  const before = new Set(DATA.passes[state.pass - 1].nodes);
  return new Set(current().nodes.filter(i => !before.has(i)).map(i => DATA.records[i].name));
}
function decisionsOf(name) {
  const r = find(name), position = new Map(DATA.passes.map((p, i) => [p.name, i]));
  const about = r ? r.about : DATA.decisions.map((d, i) => i).filter(i => DATA.decisions[i].node === name);
  return about.map(i => DATA.decisions[i]).filter(d => position.get(d.pass) <= state.pass);
}

// ---- navigation

function showPasses() {
  const first = total(DATA.passes[0]) || 1, list = el("div");
  DATA.passes.forEach((p, i) => {
    const made = DATA.decisions.filter(d => d.pass === p.name);
    const counts = [...new Set(made.map(d => d.action))].map(a => [a, made.filter(d => d.action === a).length]).filter(c => c[1]);
    const before = i ? new Set(DATA.passes[i - 1].nodes) : null;
    const changes = before ? p.nodes.filter(n => !before.has(n)).length : p.nodes.length;
    const exact = p.name === "measure_saved" && DATA.exact_bytes !== null;
    const idle = i > 0 && !counts.length && !changes && !exact;
    const what = exact ? bytes(DATA.exact_bytes) + " in full precision" : counts.length ? counts.map(c => c[1] + " " + c[0]).join(", ") : i ? changes + " nodes changed" : changes + " nodes as captured";
    const button = el("button", { className: i === state.pass ? "on" : "", onclick: () => go({ pass: i }) },
      el("span", { className: "name" }, el("i", { textContent: String(i).padStart(2, "0") }), p.name), idle ? "" : el("span", { className: "what", textContent: what }));
    if (idle) button.classList.add("idle");
    if (total(DATA.passes[0]) && !idle && !exact) {
      const bar = el("span", { className: "bar", title: bytes(total(p)) + " saved for the backward" });
      bar.style.width = `calc((100% - 24px) * ${Math.min(1, total(p) / Math.max(first, ...DATA.passes.map(total)))})`;
      button.append(bar);
    }
    button.title = p.about + (changes || counts.length ? "" : " It changed nothing.");
    button.dataset.pass = p.name;
    list.append(button);
  });
  const old = $("passes").querySelector("div"), top = old ? old.scrollTop : 0;
  $("passes").replaceChildren(el("h2", { textContent: "Passes" }), list, el("p", { textContent: "The bar is what the forward would save for the backward; grey passes changed nothing. Keys: ↑ ↓ pass, / search, f fit." }));
  list.scrollTop = top;
}
function showTabs() {
  const p = current();
  const count = { tensors: recordsOf(p).filter(r => r.precision === "quantize").length, decisions: DATA.decisions.length, saved: bytes(total(p)), errors: DATA.measures.nodes.length ? "" : "not measured" };
  $("tabs").replaceChildren(...TABS.map(([id, name]) => {
    const button = el("button", { className: id === state.tab ? "on" : "", onclick: () => go({ tab: id }) }, name, id in count ? el("small", { textContent: " " + count[id] }) : "");
    button.setAttribute("role", "tab");
    button.setAttribute("aria-selected", id === state.tab);
    button.dataset.tab = id;
    return button;
  }));
  for (const [id] of TABS) $(id).hidden = id !== state.tab;
  $("foot").hidden = state.tab !== "graph";
}
let addressing = 0;
// The address names what is shown. It waits for quick steps to end: browsers refuse changes beyond some 200 in ten seconds.
function address() {
  addressing = 0;
  const hash = new URLSearchParams({ pass: current().name, tab: state.tab });
  if (state.node) hash.set("node", state.node);
  history.replaceState(null, "", "#" + hash);
}
function go(change) {
  const redraw = "pass" in change && change.pass !== state.pass || "every" in change;
  Object.assign(state, change);
  addressing ||= setTimeout(address, 100);
  showPasses();
  showTabs();
  if (redraw) draw();
  if (state.tab !== "graph") SHEETS[state.tab]();
  select();
}
function link(name, text = name) {
  return el("a", { className: "node-link mono", textContent: text, title: name, onclick: event => { event.stopPropagation(); reveal(name); } });
}
function reveal(name, pass = state.pass) {
  const r = find(name, DATA.passes[pass]);
  const hide = r && isLeftOut(r);
  const change = { tab: "graph", node: name, pass };
  if (hide && !state.every) { $("all").checked = true; change.every = true; }
  go(change);
  centre(name);
}

// ---- drawing

let drawn = null;
const view = { x: 0, y: 0, k: 1 };

function draw() {
  const g = drawn = layout(current(), DATA.records, state.every, noteOf), scene = $("scene");
  const changed = changedNames();
  const pad = 20, top = 46;
  const lane = (x, w, name) => [svg("rect", { class: "lane", x: x - pad, y: -top, width: w + 2 * pad, height: g.height + top + 20, rx: 14 }),
    Object.assign(svg("text", { class: "lane-name", x: x - pad + 16, y: -top + 25 }), { textContent: name })];
  scene.replaceChildren(...lane(0, g.forward, "Forward ↓"));
  if (g.backward) {
    scene.append(...lane(g.forward + g.gutter, g.backward, "Backward ↑"));
    const x = g.forward + g.gutter / 2;
    scene.append(Object.assign(svg("text", { class: "lane-name", x, y: -top + 25, "text-anchor": "middle" }), { textContent: "Saved " + bytes(total(current())) }));
  }
  const rank = { "": 0, loss: 0, save: 1, q: 2, reuse: 3 };
  for (const e of [...g.edges].sort((a, b) => rank[a.cls] - rank[b.cls])) {
    e.elements = [svg("path", { class: "edge " + e.cls, d: e.path, "data-from": e.from, "data-to": e.to }),
      svg("path", { class: "arrow " + e.cls, d: "M0 0L-7 -4L-7 4Z", transform: `translate(${e.tip[0]} ${e.tip[1]}) rotate(${e.tip[2]})` })];
    scene.append(...e.elements);
  }
  for (const n of g.nodes.values()) {
    const r = n.r, io = !r || r.meaning, kind = n.lane === "s" ? "saved" : io ? "io" : r.precision;
    const title = n.label || (n.lane === "s" ? short(savedLabel(r), 17) : label(r));
    const type = n.sub || (n.lane === "s" ? bytes(n.nbytes) + " · " + dtype(r.type.split(" ")[0]) : r ? dtype(r.type.split(", float32 []")[0]) : dtype(find(n.name).type));
    const letters = Math.floor((n.w - 30 - textWidth(title, FONTS.label)) / 6.2), module = r && n.lane !== "s" && !io && r.precision !== "quantize" ? r.module : "";
    const where = module.length <= letters ? module : letters > 4 ? "…" + module.slice(1 - letters) : "";
    const box = svg("g", { class: `node p-${kind}` + (r && changed.has(r.name) && n.lane !== "s" ? " changed" : ""), transform: `translate(${n.x - n.w / 2} ${n.y})`, "data-key": n.key, "data-name": n.name, tabindex: "-1" },
      svg("rect", { width: n.w, height: n.h }),
      Object.assign(svg("text", { class: "label", x: 8, y: 17 }), { textContent: cut(title, FONTS.label, n.w - 10) }),
      Object.assign(svg("text", { class: "type", x: 8, y: 32 }), { textContent: cut(type, FONTS.type, n.w - 13) }));
    if (where) box.append(Object.assign(svg("text", { class: "module", x: n.w - 8, y: 16 }), { textContent: where }));
    if (n.note) box.append(Object.assign(svg("text", { class: "note" + (n.note.includes("off by") ? " measured" : ""), x: 8, y: 46 }), { textContent: cut(n.note, FONTS.note, n.w - 13) }));
    if (n.uses && n.uses.length > 1) box.append(svg("g", { class: "badge", transform: `translate(${n.w - 4} 3)` }, svg("circle", { r: 11 }), Object.assign(svg("text", { y: 4 }), { textContent: "×" + n.uses.length })));
    n.element = box;
    box.addEventListener("pointerenter", () => hover(n));
    box.addEventListener("pointerleave", () => hover(null));
    scene.append(box);
  }
  mark();
}
const wide = () => $("canvas").clientWidth || 900, tall = () => $("canvas").clientHeight || 700;
function move() { $("scene").setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.k})`); }
function fit() {
  const k = Math.min((wide() - 24) / (drawn.width + 60), (tall() - 20) / (drawn.height + 90), 1.3);
  Object.assign(view, { k, x: (wide() - drawn.width * k) / 2, y: 50 * k + 8 });
  move();
}
// At first the whole width, as long as that can be read.
function open_() {
  const k = Math.max(0.47, Math.min((wide() - 24) / (drawn.width + 60), 1.1));
  Object.assign(view, { k, x: Math.max(14 + 26 * k, (wide() - drawn.width * k) / 2), y: 50 * k + 8 });
  move();
}
function zoom(factor, cx = wide() / 2, cy = tall() / 2) {
  const k = Math.min(3, Math.max(0.1, view.k * factor)), f = k / view.k;
  Object.assign(view, { k, x: cx - (cx - view.x) * f, y: cy - (cy - view.y) * f });
  move();
}
function centre(name) {
  const n = drawn && [...drawn.nodes.values()].find(x => x.name === name);
  if (!n) return;
  view.k = Math.max(view.k, 0.8);
  Object.assign(view, { x: wide() / 2 - n.x * view.k, y: tall() / 2 - (n.y + n.h / 2) * view.k });
  move();
}
function near(n) {
  $("scene").classList.toggle("focus", !!n);
  for (const x of drawn.nodes.values()) x.element.classList.remove("near");
  for (const e of drawn.edges) e.elements.forEach(x => x.classList.remove("near"));
  if (!n) return;
  // The copies of a shared tensor pass through what is saved, so a saved value shows its readers too.
  const show = [n.key], reached = new Set(show);
  while (show.length) {
    const key = show.pop();
    for (const e of drawn.edges) {
      if (e.from !== key && (e.to !== key || key !== n.key && drawn.nodes.get(key).lane !== "s")) continue;
      e.elements.forEach(x => x.classList.add("near"));
      const other = e.from === key ? e.to : e.from;
      if (!reached.has(other)) { reached.add(other); if (drawn.nodes.get(other).lane === "s") show.push(other); }
    }
  }
  for (const key of reached) drawn.nodes.get(key).element.classList.add("near");
}
function hover(n) {
  near(n);
  details(n ? n.name : state.node, n);
}
function select() {
  details(state.node);
  mark();
}
function mark() {
  if (!drawn) return;
  for (const n of drawn.nodes.values()) n.element.classList.toggle("on", n.name === state.node && state.node !== "");
}

// ---- details

const KINDS = {
  gemm: "GEMM: product of two matrices; n or t says whether the first and the second are transposed.",
  spmm: "SPMM: combines what comes over the in-edges of each node.",
  sddmm: "SDDMM: one result an edge, from its two ends.",
  edge_softmax: "Softmax over the in-edges of each node.",
  typed_mm: "Product with one of several matrices, by the type of the row.",
};

function details(name, n) {
  const box = $("details"), r = name && find(name);
  if (!r) { box.replaceChildren(...about()); return; }
  const pass = current(), list = recordsOf(pass), saved = pass.saved.find(s => s.name === name);
  const readers = list.filter(x => x.inputs.includes(name));
  const rows = [["type", r.type || "–"], ["at call", r.shape], ["memory", r.nbytes ? bytes(r.nbytes) : ""], ["module", r.module ? r.module + (r.layer ? ` (${r.layer})` : "") : r.layer],
    ["line", r.line], ["half", r.half], ...scaleRows(copyBehind(r)), ["lives", lifetime(name)], ...errorRows(MEASURED.has(name) ? name : (copyBehind(r) || r).name),
    ["saved", saved ? (saved.held ? "held by the caller, costs nothing" : bytes(saved.nbytes)) : ""]];
  const dl = el("dl");
  for (const [k, v] of rows) if (v) dl.append(el("dt", { textContent: k }), el("dd", { textContent: v, className: k === "type" || k === "line" ? "mono" : "" }));
  const tags = [r.kind && r.primitive, { quantize: "makes integers", int8: "int8", kept: "kept in full precision" }[r.precision] || r.precision, r.meaning].filter(Boolean);
  box.replaceChildren(el("h2", { textContent: n && n.lane === "s" ? "Saved value" : r.code ? "Node" : "Input of the graph" }), el("h3", { className: "mono", textContent: name }), ...tags.map(t => el("span", { className: "tag", textContent: t })));
  if (KINDS[r.kind]) box.append(el("p", { className: "kind", textContent: KINDS[r.kind] }));
  const reasons = decisionsOf(name);
  for (const d of [...reasons].reverse()) box.append(reason(d));
  box.append(dl);
  if (n && n.uses && n.uses.length > 1 || r.precision === "quantize") {
    const uses = copyOf(r, list).readers;
    box.append(el("h2", { textContent: uses.length > 1 ? "One int8 copy for" : "Read by" }), lines(uses));
  } else if (readers.length) box.append(el("h2", { textContent: "Read by" }), lines(readers));
  if (r.inputs.length) box.append(el("h2", { textContent: "Reads" }), lines(r.inputs.map(i => find(i)).filter(x => x && x.precision !== "size" && !/relation_\d+_/.test(x.meaning))));
  if (r.code) box.append(el("pre", { textContent: `${name} = ${r.code}` }));
}
function scaleRows(r) {
  if (!r) return [];
  const m = MEASURED.get(r.name), s = r.scale;
  return [["bits", `${s.bits}, rounded ${s.rounding}`], ["absmax", `${m ? number(m.absmax) + ", " : ""}found by ${s.absmax}`], ["scale", `${m ? number(m.scale) + " " : ""}= absmax / ${s.levels}`]];
}
function errorRows(name) {
  const m = MEASURED.get(name);
  if (!m) return [];
  const own = m.own === null ? "" : m.own === m.relative ? ", all of it by its own rounding" : `, ${percent(m.own)} by its own rounding`;
  return [["error", `${percent(m.relative)} from full precision${own}`], ["cosine", cosine(m.cosine)]];
}
// From where to where an int8 copy lives, as the last pass that says so has it.
function lifetime(name) {
  const told = DATA.passes.slice(0, state.pass + 1).map(p => p.lifetimes[name]).filter(Boolean);
  return told.length ? told.pop().replace(/^.*? B, /, "") : "";
}
function reason(d) {
  return el("div", { className: "reason a-" + d.action }, el("b", { textContent: d.action + ": " }), d.reason, el("small", { textContent: explained(d.reason) }), el("small", { textContent: d.pass }));
}
function explained(reason) {
  const rule = Object.keys(DATA.explained).find(x => reason.startsWith(x));
  return rule ? DATA.explained[rule] : "";
}
function lines(records) {
  return el("div", {}, ...records.map(r => {
    const copy = copyBehind(r), m = copy && MEASURED.get(copy.name);
    return el("div", {}, link(r.name), el("small", { textContent: ` ${r.half}${r.module ? ", " + r.module : ""}${m ? ", scale " + number(m.scale) : ""}` }));
  }));
}
function about() {
  const p = current(), made = DATA.decisions.filter(d => d.pass === p.name), nodes = recordsOf(p);
  const quantize = nodes.filter(r => r.precision === "quantize").length, calls = nodes.filter(r => r.precision === "int8" && r.kind).length, kept = nodes.filter(r => r.precision === "kept").length;
  const parts = [el("h2", { textContent: state.pass ? "After pass" : "Before the first pass" }), el("h3", { className: "mono", textContent: p.name })];
  const dl = el("dl");
  for (const [k, v] of [["nodes", nodes.length], ["int8", `${calls} primitives`], ["kept", `${kept} primitives`], ["copies", `${quantize} tensors made int8`], ["saved", bytes(total(p))], ["file", p.file]]) dl.append(el("dt", { textContent: k }), el("dd", { textContent: v }));
  if (state.pass === last) return [el("h2", { textContent: "After the last pass" }), parts[1], ...inShort(nodes)];
  parts.push(el("p", { textContent: p.about }), dl);
  for (const [k, v] of Object.entries(p.numbers)) parts.push(el("div", { className: "reason", textContent: k.startsWith("bytes ") ? `${k.slice(6)}: ${bytes(v)}` : `${k}: ${v.toLocaleString("en")}` }));
  if (made.length) parts.push(el("h2", { textContent: "What it decided" }));
  for (const d of made) { const line = reason(d); line.lastChild.remove(); line.append(" ", link(present(d))); parts.push(line); }
  if (!made.length) parts.push(el("p", { textContent: "Point at a box for its reason, shape and source line; click keeps it here." }));
  return parts;
}
// A call by what it computes, and the half that it runs in.
function call(r) { return el("span", { className: "call" }, link(r.name, r.kind ? label(r) : r.name), el("small", { textContent: r.half })); }
function listed(items) { return items.flatMap((x, i) => i ? [", ", x] : [x]); }
// What a quantized tensor is: an input, a parameter, or a result and the module that computes it.
function cameFrom(of, half) {
  const module = of.module || "(model)";
  return isParameter(of) || of.op === "input" ? of.op + (of.module ? " of " + of.module : "") : (half === "backward" ? "gradient in " : "result of ") + module;
}
// What a reader asks first of the graph that runs: what is quantized, who reads it, what is not and why.
function inShort(nodes) {
  const copies = nodes.filter(r => r.precision === "quantize"), kept = nodes.filter(r => r.precision === "kept"), quantized = nodes.filter(r => r.precision === "int8" && r.kind);
  const parts = [el("h2", { textContent: `Quantized: ${copies.length} tensors` })];
  for (const r of copies) {
    const m = MEASURED.get(r.name), uses = copyOf(r, nodes).readers, of = tensorOf(r);
    parts.push(el("div", { className: "item i-quantize" }, el("b", {}, link(r.name, subject(r))), el("small", { textContent: cameFrom(of, r.half) }),
      m ? el("div", { textContent: `scale ${number(m.scale)}, off by ${percent(m.relative)}` }) : "",
      el("div", {}, "read by ", ...listed(uses.map(call)))));
  }
  parts.push(el("h2", { textContent: `In full precision: ${kept.length} of ${kept.length + quantized.length} primitives` }));
  const rules = new Map();
  for (const r of kept) {
    let why = r.kept, seen = 0;
    for (let m; (m = /^backward of (\w+), which is kept/.exec(why)) && seen++ < 9;) why = (find(m[1]) || { kept: "" }).kept || why.replace(/^backward/, "Backward");
    const rule = why.split(":")[0] === "output layer" || why.split(":")[0] === "attention logits" ? why.split(":")[0] : why;
    rules.set(rule, [...(rules.get(rule) || []), r]);
  }
  const first = ([rule]) => rule === "output layer" ? 0 : 1;
  for (const [rule, list] of [...rules].sort((a, b) => first(a) - first(b) || b[1].length - a[1].length)) {
    const modules = new Map();
    for (const r of list) modules.set(r.module || "(model)", [...(modules.get(r.module || "(model)") || []), r]);
    parts.push(el("div", { className: "item i-kept" }, el("b", { textContent: rule }), ...[...modules].map(([module, list]) => el("div", {}, module + ": ", ...listed(list.map(call)))), explained(rule) ? el("small", { className: "why", textContent: explained(rule) }) : ""));
  }
  if (DATA.gathers.length) parts.push(el("div", { className: "item" }, el("b", { textContent: `${DATA.gathers.length} gathers and scatters of PyTorch` }), el("div", {}, ...gathered()), el("small", { className: "why", textContent: "Messages that a library passes by index_select, scatter_add and the like are no primitives and stay float. Graph convolutions of DGL become primitives: see docs/limits.md of gqc." })));
  const structure = nodes.filter(isStructure);
  if (structure.length) parts.push(el("h2", { textContent: `Structure: ${structure.length} tensors` }), el("div", { className: "item" }, "Computed once a graph from integer arguments (self-loops, degrees, ends of edges), in front of the stages, and read as inputs:",
    ...structure.map(r => el("div", {}, link(r.name), el("small", { textContent: ` ${dtype(r.type)}${r.line ? ", " + r.line : ""}` })))));
  parts.push(el("p", { textContent: DATA.measures.note + " Point at a box for its reason, shape, scale and error; a click keeps it here." }));
  return parts;
}
// How many gathers each module makes, with a link to the first.
function gathered() {
  const modules = new Map();
  for (const r of DATA.gathers.map(name => find(name, DATA.passes[last]))) modules.set(r.module || "(model)", [...(modules.get(r.module || "(model)") || []), r]);
  return listed([...modules].map(([module, list]) => el("span", { className: "call" }, `${module}: `, link(list[0].name, String(list.length)))));
}
// The name under which a decision's node is in the graph after the current pass.
function present(d) {
  const at = DATA.decisions.indexOf(d), by = find(d.node) || recordsOf(current()).find(r => r.kind && r.about.includes(at)) || recordsOf(current()).find(r => r.about.includes(at));
  return by ? by.name : d.node;
}
// The calls that read an int8 copy, behind the results and reshapes of its quantize node.
function copyOf(r, list) {
  const seen = new Set([r.name]), readers = [];
  let saved = 0;
  for (const x of list) {
    if (!x.inputs.some(i => seen.has(i))) continue;
    if (x.plumbing) seen.add(x.name); else readers.push(x);
  }
  for (const s of current().saved) if (seen.has(s.name)) saved += s.nbytes;
  return { readers, saved };
}

// ---- sheets

function table(heads, rows) {
  return el("table", {}, el("thead", {}, el("tr", {}, ...heads.map(h => el("th", { textContent: h })))), el("tbody", {}, ...rows));
}
function cell(content, className = "") { return el("td", { className }, content); }
function errorCell(d) {
  const m = MEASURED.get(d.node_after);
  return cell(m && d.kind !== "" && (d.action === "quantized" || d.action === "kept") ? percent(m.relative) : "", "num");
}
// Something with a smaller line below.
function placed(what, below) { return el("div", {}, what, below ? el("small", { className: "below", textContent: below }) : ""); }
// A link to the node that a decision is about in the graph that runs, and its name when it was decided.
function finalName(d) {
  const name = d.node_after;
  if (!name) return placed(el("span", { className: "mono", textContent: d.node }), "gone after the last pass");
  const there = el("a", { className: "node-link mono", textContent: name, onclick: event => { event.stopPropagation(); reveal(name, last); } });
  return placed(there, name === d.node ? "" : "was " + d.node);
}
function pill(action) { return el("span", { className: "pill " + action, textContent: action }); }

const filters = { action: "quantized or kept", half: "", kind: "", pass: "", text: "" };
const SHEETS = {
  graph() {},
  tensors() {
    const list = recordsOf(current()), rows = list.filter(r => r.precision === "quantize").map(r => {
      const copy = copyOf(r, list), of = tensorOf(r), m = MEASURED.get(r.name);
      return el("tr", { className: "row", onclick: () => reveal(r.name) }, cell(placed(link(r.scale.tensor, subject(r)), [cameFrom(of, r.half), of.line].filter(Boolean).join(", "))), cell(placed(el("span", { className: "mono", textContent: dtype(of.type) }), `as int${r.scale.bits}`)),
        cell(el("div", {}, ...copy.readers.map(x => el("div", {}, call(x))))), cell(copy.saved ? bytes(copy.saved) : "–", "num"), cell(m ? number(m.absmax) : "", "num"), cell(m ? number(m.scale) : "", "num"), cell(m ? percent(m.relative) : "", "num"), cell(m ? cosine(m.cosine) : "", "num"));
    });
    const intro = rows.length ? "Each row is one int8 copy: value = integer × scale, scale = absmax / largest integer. Everything that reads the tensor in int8 reads this copy, so its readers in the backward use what the forward has made. " + DATA.measures.note : "No tensor is quantized after this pass.";
    const heads = ["tensor", "type", "read in int8 by", "saved", "absmax", "scale", "error", "cosine"];
    $("tensors").replaceChildren(el("div", { className: "sheet" }, el("h2", { textContent: "Quantized tensors after " + current().name }), el("p", { textContent: intro }), table(heads, rows)));
  },
  decisions() {
    const choices = { action: ["quantized or kept", ...new Set(DATA.decisions.map(d => d.action)), ""], half: ["", "forward", "backward"],
      kind: ["", ...new Set(DATA.decisions.map(d => d.kind))], pass: ["", ...new Set(DATA.decisions.map(d => d.pass))] };
    const body = el("tbody"), count = el("span", { className: "count" });
    const fill = () => {
      const shown = DATA.decisions.filter(d => (!filters.action || filters.action.split(" or ").includes(d.action)) && (!filters.half || d.half === filters.half) && (!filters.kind || d.kind === filters.kind) && (!filters.pass || d.pass === filters.pass) && (!filters.text || Object.values(d).join(" ").toLowerCase().includes(filters.text.toLowerCase())));
      shown.sort((a, b) => (a.action !== "quantized") - (b.action !== "quantized"));
      count.textContent = `${shown.length} of ${DATA.decisions.length}`;
      body.replaceChildren(...shown.map(d => {
        const pass = DATA.passes.findIndex(p => p.name === d.pass);
        return el("tr", { className: "row", onclick: () => { go({ pass }); reveal(present(d), pass); } }, cell(pill(d.action)), cell(d.half), cell(placed(d.module || "(model)", d.line)), cell(d.kind), cell(finalName(d)), cell(d.reason, "wide"), errorCell(d));
      }));
    };
    const selects = Object.entries(choices).map(([key, values]) => {
      const select = el("select", { title: key, onchange: () => { filters[key] = select.value; fill(); } }, ...values.map(v => el("option", { value: v, textContent: v || `every ${key}` })));
      select.dataset.filter = key;
      select.value = filters[key];
      return select;
    });
    const text = el("input", { type: "search", placeholder: "module, node, reason", value: filters.text, oninput: () => { filters.text = text.value; fill(); } });
    fill();
    $("decisions").replaceChildren(el("div", { className: "sheet" }, el("h2", { textContent: "Decisions of all passes" }), el("div", { className: "filters" }, ...selects, text, count), el("table", {}, el("thead", {}, el("tr", {}, ...["", "half", "module", "kind", "node", "reason", "error"].map(h => el("th", { textContent: h })))), body)));
  },
  errors() {
    const size = m => typeof m.relative === "string" ? Infinity : m.relative, most = Math.max(1e-12, ...DATA.measures.nodes.map(size).filter(isFinite));
    const rows = [...DATA.measures.nodes].sort((a, b) => size(b) - size(a)).map(m => {
      const r = find(m.node, DATA.passes[last]), meter = el("span", { className: "meter e-" + (r ? r.precision : "") });
      meter.style.width = 100 * Math.min(1, size(m) / most) + "%";
      const what = m.gradient_of ? "gradient of " + m.gradient_of : m.kind === "operand" ? "int8 copy of " + subject(r, DATA.passes[last]) : m.kind;
      return el("tr", { className: "row", onclick: () => reveal(m.node, last) }, cell(percent(m.relative), "num"), cell(meter, "meter-cell"), cell(m.own === null ? "" : percent(m.own), "num"), cell(cosine(m.cosine), "num"), cell(what), cell(placed(link(m.node), r ? `${r.half}, ${r.module || "(model)"}` : "")));
    });
    const intro = "How far each primitive, int8 copy, output and gradient is from a run in which nothing is rounded, |q − x| / |x|, worst first; beside it what its own rounding adds. " + DATA.measures.note;
    $("errors").replaceChildren(el("div", { className: "sheet" }, el("h2", { textContent: "Errors after the last pass" }), el("p", { textContent: intro }), rows.length ? table(["error", "", "its own", "cosine", "what", "node"], rows) : ""));
  },
  saved() {
    const p = current(), cost = p.saved.filter(s => !s.held && s.type.slice(0, 4) !== "size").sort((a, b) => b.nbytes - a.nbytes), most = Math.max(1, ...cost.map(s => s.nbytes));
    const rows = cost.map(s => {
      const r = find(s.name), meter = el("span", { className: "meter" });
      meter.style.width = 100 * s.nbytes / most + "%";
      return el("tr", { className: "row", onclick: () => reveal(s.name) }, cell(bytes(s.nbytes), "num"), cell(meter, "meter-cell"), cell(link(s.name), "mono"), cell(dtype(s.type), "mono"), cell(placed(r && r.module || "(model)", r ? r.line : "")));
    });
    const ofArguments = recordsOf(p).filter(r => r.precision === "quantize" && tensorOf(r).meaning).reduce((s, r) => s + copyOf(r, recordsOf(p)).saved, 0);
    const held = p.saved.filter(s => s.held).length;
    $("saved").replaceChildren(el("div", { className: "sheet" }, el("h2", { textContent: `Saved for the backward after ${p.name}: ${bytes(total(p))}` }),
      el("p", { textContent: `${DATA.exact_bytes === null ? "" : `In full precision it would be ${bytes(DATA.exact_bytes)}. `}${ofArguments ? `${bytes(ofArguments)} are int8 copies of arguments, whose own memory the caller holds. ` : ""}The cut between the halves is where the fewest bytes cross; ${held} parameters and inputs cross too, which the caller holds anyway.` }), table(["bytes", "", "tensor", "type", "module"], rows)));
  },
  code() {
    const before = state.pass ? new Set(DATA.passes[state.pass - 1].nodes) : new Set(current().nodes);
    const place = r => [r.module && r.layer ? `${r.module} (${r.layer})` : r.module || r.layer, r.line].filter(Boolean).join(", ");
    const listing = el("div", { className: "listing mono" }, ...current().nodes.map(i => {
      const r = DATA.records[i], text = r.code ? `${r.name} = ${r.code}` : r.name, cls = (before.has(i) ? "" : "add ") + (r.name === state.node ? "on" : "");
      const note = [r.type, r.meaning || place(r), r.kept ? `kept: ${r.kept}` : ""].filter(Boolean).join(" | ");
      const line = el("span", { className: cls, onclick: () => go({ node: r.name }) }, text, el("em", { textContent: "  # " + note }));
      line.dataset.node = r.name;
      return line;
    }));
    $("code").replaceChildren(listing);
    const on = listing.querySelector(".on");
    if (on) on.scrollIntoView({ block: "center" });
  },
  diff() {
    const text = state.pass ? current().diff : "# before the first pass";
    $("diff").replaceChildren(el("div", { className: "listing mono" }, ...text.split("\n").map(l => el("span", { className: l[0] === "+" ? "add" : l[0] === "-" ? "del" : l[0] === "@" ? "at" : "", textContent: l || " " }))));
  },
  halves() {
    $("halves").replaceChildren(el("div", { className: "listing mono" }, ...DATA.halves.code.split("\n").map(l => el("span", { className: /^\s*#/.test(l) ? "comment" : "", textContent: l || " " }))));
  },
};

// ---- search

function search() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean), list = $("hits");
  const hits = words.length ? recordsOf(current()).filter(r => {
    const text = [r.name, r.op, r.module, r.layer, r.line, r.type, r.primitive, r.meaning, r.precision, ...decisionsOf(r.name).map(d => d.action + " " + d.reason)].join(" ").toLowerCase();
    return words.every(w => text.includes(w));
  }) : [];
  const names = new Set(hits.map(r => r.name));
  $("scene").classList.toggle("searching", words.length > 0);
  for (const n of drawn.nodes.values()) n.element.classList.toggle("hit", names.has(n.name));
  list.hidden = !words.length;
  list.replaceChildren(...hits.slice(0, 60).map(r => el("li", { onmousedown: event => { event.preventDefault(); pick(r.name); } }, el("span", { className: "mono", textContent: r.name }), el("small", { textContent: [r.kind ? r.primitive : "", r.module].filter(Boolean).join(", ") }))));
  if (words.length && !hits.length) list.append(el("li", { className: "none", textContent: "nothing found after this pass" }));
  else if (hits.length) list.prepend(el("li", { className: "none", textContent: `${hits.length} found` }));
}
function pick(name) {
  $("hits").hidden = true;
  reveal(name);
}
function steps(by) {
  const items = [...$("hits").querySelectorAll("li:not(.none)")], at = items.findIndex(i => i.classList.contains("on"));
  items.forEach(i => i.classList.remove("on"));
  if (items.length) { const next = items[(at + by + items.length) % items.length]; next.classList.add("on"); next.scrollIntoView({ block: "nearest" }); }
}

// ---- start

function theme(name) {
  document.documentElement.dataset.theme = name;
  $("theme").textContent = name === "dark" ? "☀ light" : "☾ dark";
}
$("theme").onclick = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
$("all").onchange = () => go({ every: $("all").checked });
$("in").onclick = () => zoom(1.25);
$("out").onclick = () => zoom(0.8);
$("fit").onclick = fit;
$("search").oninput = search;
$("search").onblur = () => { $("hits").hidden = true; };
$("search").onfocus = () => { if ($("search").value) search(); };
$("search").onkeydown = event => {
  if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); steps(event.key === "ArrowDown" ? 1 : -1); }
  else if (event.key === "Enter") { const on = $("hits").querySelector("li.on") || $("hits").querySelector("li:not(.none)"); if (on) pick(on.querySelector("span").textContent); }
  else if (event.key === "Escape") { $("search").value = ""; search(); $("search").blur(); }
};
document.addEventListener("keydown", event => {
  if (/INPUT|SELECT/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") { event.preventDefault(); $("search").focus(); }
  else if (event.key === "f") fit();
  else if (event.key === "ArrowDown" && state.pass < last) { event.preventDefault(); go({ pass: state.pass + 1 }); }
  else if (event.key === "ArrowUp" && state.pass > 0) { event.preventDefault(); go({ pass: state.pass - 1 }); }
  else if (event.key === "Escape") go({ node: "" });
});
{
  const canvas = $("canvas");
  let start = null;
  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    if (event.ctrlKey || event.metaKey || !event.shiftKey && Math.abs(event.deltaY) >= 60 && !event.deltaX) zoom(Math.exp(-event.deltaY / 500), event.clientX - box.left, event.clientY - box.top);
    else { view.x -= event.deltaX; view.y -= event.deltaY; move(); }
  }, { passive: false });
  canvas.addEventListener("pointerdown", event => { start = { x: event.clientX, y: event.clientY, vx: view.x, vy: view.y, moved: false, node: event.target.closest(".node") }; });
  window.addEventListener("pointermove", event => {
    if (!start) return;
    const dx = event.clientX - start.x, dy = event.clientY - start.y;
    if (Math.abs(dx) + Math.abs(dy) > 4) { start.moved = true; canvas.classList.add("moving"); }
    if (start.moved) { Object.assign(view, { x: start.vx + dx, y: start.vy + dy }); move(); }
  });
  window.addEventListener("pointerup", () => {
    if (start && !start.moved) go({ node: start.node ? start.node.dataset.name : "" });
    start = null;
    canvas.classList.remove("moving");
  });
}
$("legend").append(...[["quantize", "float → int8"], ["int8", "computes in int8"], ["kept", "full precision"], ["float", "no primitive"], ["saved", "saved for backward"]].map(([name, text]) => {
  const i = el("i");
  i.style.background = `var(--${name})`;
  i.style.borderColor = `var(--${name}-line)`;
  return el("span", {}, i, text);
}), ...[["quantize", "shared int8 copy"]].map(([name, text]) => {
  const i = el("i", { className: "stroke" });
  i.style.borderColor = `var(--${name}-line)`;
  return el("span", {}, i, text);
}), el("span", { textContent: "┄ changed here" }));
{
  const [model, ...rest] = DATA.title.split(", ");
  $("model").textContent = model;
  $("where").textContent = rest.join(" · ").replace("_", " ");
  $("policy").textContent = $("policy").title = DATA.policy;
  $("sizes").textContent = Object.entries(DATA.sizes).map(([k, v]) => v === null ? `${k} not fixed` : `${k} = ${v.toLocaleString("en")}`).join("   ");
  theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const hash = new URLSearchParams(location.hash.slice(1)), pass = DATA.passes.findIndex(p => p.name === hash.get("pass"));
  Object.assign(state, { pass: pass < 0 ? last : pass, node: hash.get("node") || "", tab: TABS.some(t => t[0] === hash.get("tab")) ? hash.get("tab") : "graph" });
  draw();
  go({});
  open_();
  if (state.node) centre(state.node);
}
