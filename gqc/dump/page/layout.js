"use strict";
// From the graph after a pass to boxes and curves: the forward runs down on the left, the backward up on the right, and
// what is saved stands between them.

const BOX = 162, COPY = 196, SMALL = 148, TALL = 53, ROW = 74, GAP = 14, GUTTER = 220, PILL = 150;

// As gqc.text.bytes_text has it; Python rounds halves to even.
function bytes(n) {
  const tenths = x => { const t = 10 * x, up = Math.round(t); return ((up - t === 0.5 && up % 2 ? up - 1 : up) / 10).toFixed(1); };
  if (n >= 1 << 20) return tenths(n / (1 << 20)) + " MiB";
  if (n >= 1024) return tenths(n / 1024) + " KiB";
  return n + " B";
}

function isParameter(r) { return r.op === "parameter" || r.op === "buffer"; }
function isStructure(r) { return r.meaning === "structure"; }
// What is drawn only if all nodes are: a box that reads such an input says so.
function isLeftOut(r) { return r.plumbing || r.op === "seed" || isParameter(r) || isStructure(r); }
function isInteger8(r) { return r.precision === "int8" && /^u?int/.test(r.type); }

// The nodes and edges to draw. A key is the half, "f" or "b", or "s" for a saved value, and the name of the node.
function visibleGraph(pass, records, every) {
  const list = pass.nodes.map(i => records[i]), byName = new Map(list.map(r => [r.name, r]));
  const inForward = new Set(pass.forward.map(i => list[i].name)), inBackward = new Set(pass.backward.map(i => list[i].name));
  const saved = new Map(pass.saved.map(s => [s.name, s]));
  const hidden = r => r.op === "input" && r.plumbing || !every && isLeftOut(r);
  const nodes = new Map(), edges = new Map();

  function add(key, r, lane, extra) {
    if (!nodes.has(key)) nodes.set(key, Object.assign({ key, r, lane, name: r ? r.name : "", reads: [] }, extra));
    return nodes.get(key);
  }
  function resolve(name, lane) {
    const r = byName.get(name);
    if (!r) return [];
    const crosses = lane === "b" && saved.get(name);
    if (crosses && !crosses.held) return r.precision === "size" && !every ? [] : ["s:" + name];
    if (hidden(r)) return r.precision === "size" || !r.code ? [] : resolve(r.inputs[0], lane);
    if (crosses || (lane === "b" && !inBackward.has(name))) add("b:" + name, r, "b", { held: true });
    return [lane + ":" + name];
  }
  function connect(from, to, cls) {
    const key = from + ">" + to, old = edges.get(key);
    if (!old) edges.set(key, { from, to, cls });
    else if (cls === "q") old.cls = "q";
  }
  function parametersOf(r) {
    const found = [], stack = [...r.inputs];
    while (stack.length) {
      const x = byName.get(stack.pop());
      if (!x || every) continue;
      if (isParameter(x) || isStructure(x)) found.push(x.meaning.replace(/^\w+ /, ""));
      else if (hidden(x) && x.code && x.precision !== "size") stack.push(x.inputs[0]);
    }
    return [...new Set(found)];
  }

  for (const r of list) {
    if (hidden(r)) continue;
    const lanes = (inForward.has(r.name) ? "f" : "") + (inBackward.has(r.name) && !saved.has(r.name) ? "b" : "");
    for (const lane of lanes) add(lane + ":" + r.name, r, lane).reads = parametersOf(r);
  }
  for (const node of [...nodes.values()]) {
    if (!node.r.code || node.held) continue;
    for (const input of node.r.inputs) {
      const cls = isInteger8(byName.get(input)) ? "q" : "";
      for (const from of resolve(input, node.lane)) connect(from, node.key, cls);
    }
  }
  pass.outputs.forEach((name, i) => {
    if (!name) return;
    const key = "f:output " + i;
    add(key, null, "f", { label: pass.outputs.length > 1 ? "output " + i : "output", name });
    for (const from of resolve(name, "f")) connect(from, key, "");
  });
  for (const [of, name] of Object.entries(pass.gradients)) {
    const key = "b:gradient " + of, meaning = (byName.get(of) || {}).meaning || of;
    add(key, null, "b", { label: "gradient", sub: meaning.replace(/^(parameter|buffer) /, ""), name, gradient: true });
    for (const from of resolve(name, "b")) connect(from, key, "");
  }

  // Saved values; a scale is drawn with the integers that it belongs to.
  const readers = new Map();
  for (const e of edges.values()) if (e.from.startsWith("s:")) readers.set(e.from, [...(readers.get(e.from) || []), e]);
  const leaders = new Map();
  for (const s of [...pass.saved].sort((a, b) => b.nbytes - a.nbytes)) {
    const key = "s:" + s.name, r = byName.get(s.name);
    if (s.held || !readers.has(key)) continue;
    const sources = resolve(s.name, "f"), source = sources[0] || "";
    const leader = leaders.get(source);
    if (leader && s.nbytes <= 8) {
      leader.nbytes += s.nbytes;
      for (const e of readers.get(key)) { edges.delete(e.from + ">" + e.to); connect(leader.key, e.to, e.cls); }
      continue;
    }
    const pill = add(key, r, "s", { nbytes: s.nbytes });
    leaders.set(source, pill);
    const cls = isInteger8(r) ? "q" : "save";
    for (const from of sources) edges.set(from + ">" + key, { from, to: key, cls });
    for (const e of readers.get(key)) if (e.cls !== "q") e.cls = "save";
  }
  for (const [key, e] of [...edges]) if (!nodes.has(e.from) || !nodes.has(e.to)) edges.delete(key);

  // An int8 copy that several calls read.
  const out = new Map();
  for (const e of edges.values()) out.set(e.from, [...(out.get(e.from) || []), e]);
  for (const node of nodes.values()) {
    if (!node.r || node.r.precision !== "quantize" || node.lane === "s") continue;
    const used = [], stack = [node.key], seen = new Set();
    while (stack.length) {
      const key = stack.pop();
      for (const e of out.get(key) || []) {
        if (seen.has(e)) continue;
        seen.add(e);
        used.push(e);
        const to = nodes.get(e.to);
        if (to.lane === "s" || (to.r && isInteger8(to.r) && to.r.plumbing)) stack.push(e.to);
      }
    }
    const calls = new Set(used.map(e => nodes.get(e.to)).filter(n => n.r && n.lane !== "s" && !n.r.plumbing).map(n => n.name));
    node.uses = [...calls];
    if (calls.size > 1) used.forEach(e => { e.cls = "reuse"; });
  }
  return { nodes, edges: [...edges.values()] };
}

// Layers of one half, order within them and horizontal places. Returns the number of layers and the width.
function placeLane(nodes, edges) {
  const up = new Map(nodes.map(n => [n.key, []])), down = new Map(nodes.map(n => [n.key, []]));
  for (const e of edges) { up.get(e.to).push(e.from); down.get(e.from).push(e.to); }
  const layer = new Map(), byKey = new Map(nodes.map(n => [n.key, n]));
  const depth = key => {
    if (!layer.has(key)) { layer.set(key, 0); layer.set(key, Math.max(-1, ...up.get(key).map(depth)) + 1); }
    return layer.get(key);
  };
  nodes.forEach(n => depth(n.key));
  for (let again = 0; again < 3; again++)
    for (const n of nodes)  // what has no operand stands right before its first reader
      if (!up.get(n.key).length && down.get(n.key).length && !n.first) layer.set(n.key, Math.min(...down.get(n.key).map(k => layer.get(k))) - 1);
  const lowest = Math.min(0, ...layer.values());
  for (const [k, v] of layer) layer.set(k, v - lowest);

  const count = Math.max(0, ...layer.values()) + 1, rows = Array.from({ length: count }, () => []);
  const items = new Map();
  const put = (key, at, width) => { const it = { key, at, width, up: [], down: [], x: 0 }; items.set(key, it); rows[at].push(it); return it; };
  for (const n of nodes) put(n.key, layer.get(n.key), n.w);
  const chains = new Map();
  for (const e of edges) {  // a long edge passes a slot of its own in each layer between
    let last = items.get(e.from);
    const chain = [];
    for (let at = layer.get(e.from) + 1; at < layer.get(e.to); at++) {
      const slot = put(e.from + ">" + e.to + at, at, 14);
      last.down.push(slot); slot.up.push(last); last = slot; chain.push(slot);
    }
    last.down.push(items.get(e.to)); items.get(e.to).up.push(last);
    chains.set(e, chain);
  }
  rows.forEach(row => row.forEach((it, i) => { it.order = i; }));
  const sweep = (row, side) => {
    row.forEach(it => { const n = it[side]; it.bary = n.length ? n.reduce((s, o) => s + o.order, 0) / n.length : it.order; });
    row.sort((a, b) => a.bary - b.bary || a.order - b.order).forEach((it, i) => { it.order = i; });
  };
  for (let i = 0; i < 24; i++) {
    if (i % 2) for (let r = rows.length - 2; r >= 0; r--) sweep(rows[r], "down");
    else for (let r = 1; r < rows.length; r++) sweep(rows[r], "up");
  }
  const room = (a, b) => (a.width + b.width) / 2 + GAP * (a.width > 20 && b.width > 20 ? 1 : 0.5);
  const settle = (row, want) => {
    const left = [], right = [];
    row.forEach((it, i) => { left[i] = i ? Math.max(want[i], left[i - 1] + room(row[i - 1], it)) : want[i]; });
    for (let i = row.length - 1; i >= 0; i--) right[i] = i < row.length - 1 ? Math.min(want[i], right[i + 1] - room(row[i], row[i + 1])) : want[i];
    row.forEach((it, i) => { it.x = (left[i] + right[i]) / 2; });
  };
  rows.forEach(row => settle(row, row.map(() => 0)));
  for (let i = 0; i < 40; i++)
    for (const row of i % 2 ? [...rows].reverse() : rows)
      settle(row, row.map(it => {
        const near = [...it.up, ...it.down];
        return near.length ? 0.88 * near.reduce((s, o) => s + o.x, 0) / near.length : it.x;  // drawn to the middle a little
      }));
  let min = Infinity, max = -Infinity;
  for (const it of items.values()) { min = Math.min(min, it.x - it.width / 2); max = Math.max(max, it.x + it.width / 2); }
  for (const it of items.values()) it.x -= min;
  for (const [key, it] of items) if (byKey.has(key)) Object.assign(byKey.get(key), { x: it.x, at: it.at });
  return { count, width: nodes.length ? max - min : 0, chains };
}

// Positions of all boxes and paths of all edges. noteOf gives the third line of a box.
function layout(pass, records, every, noteOf) {
  const { nodes, edges } = visibleGraph(pass, records, every);
  const all = [...nodes.values()], of = lane => all.filter(n => n.lane === lane);
  const inside = lane => edges.filter(e => nodes.get(e.from).lane === lane && nodes.get(e.to).lane === lane);
  for (const n of of("b")) n.first = n.r && n.r.op === "tangent";
  for (const n of all) n.w = n.lane === "s" ? PILL : n.gradient ? SMALL : n.r && n.r.precision === "quantize" ? COPY : BOX;
  const forwardEdges = inside("f"), backwardEdges = inside("b");
  const f = placeLane(of("f"), forwardEdges), b = placeLane(of("b"), backwardEdges);
  const pills = of("s"), hasBackward = of("b").length > 0;
  const height = Math.max(f.count, b.count) * ROW;
  const stepF = height / Math.max(1, f.count), stepB = height / Math.max(1, b.count);
  const gutter = hasBackward ? GUTTER : 0, offsetB = f.width + gutter;
  const yF = at => at * Math.min(stepF, ROW * 1.5), yB = at => height - ROW - at * Math.min(stepB, ROW * 1.5);
  for (const n of of("f")) n.y = yF(n.at);
  for (const n of of("b")) Object.assign(n, { x: n.x + offsetB, y: yB(n.at) });
  for (const n of all) { n.note = noteOf(n); n.h = n.note ? TALL : 40; }

  // A saved value stands at the height of its producer and its readers, below the one before it.
  for (const p of pills) {
    const ends = edges.filter(e => e.from === p.key || e.to === p.key).map(e => nodes.get(e.from === p.key ? e.to : e.from));
    p.want = ends.reduce((s, n) => s + n.y, 0) / Math.max(1, ends.length);
  }
  pills.sort((a, c) => a.want - c.want);
  const step = 52, down = [], upward = [];
  pills.forEach((p, i) => { down[i] = Math.max(p.want, i ? down[i - 1] + step : 0); });
  for (let i = pills.length - 1; i >= 0; i--) upward[i] = Math.min(pills[i].want, i < pills.length - 1 ? upward[i + 1] - step : height);
  pills.forEach((p, i) => Object.assign(p, { x: f.width + gutter / 2, y: (down[i] + upward[i]) / 2, h: 38 }));

  const curve = (x1, y1, x2, y2) => { const m = (y1 + y2) / 2; return `C${x1} ${m} ${x2} ${m} ${x2} ${y2}`; };
  const across = (x1, y1, x2, y2) => { const m = (x1 + x2) / 2; return `C${m} ${y1} ${m} ${y2} ${x2} ${y2}`; };
  for (const [lane, list, chains, y, dx, sign] of [["f", forwardEdges, f.chains, yF, 0, 1], ["b", backwardEdges, b.chains, yB, offsetB, -1]]) {
    for (const e of list) {
      const a = nodes.get(e.from), z = nodes.get(e.to);
      let x = a.x, at = a.y + sign * a.h / 2 + a.h / 2, path = `M${x} ${at}`;
      for (const slot of chains.get(e)) {  // straight past the boxes of a row
        const sx = slot.x + dx, top = y(slot.at) + (sign > 0 ? 4 : TALL - 4), end = top + sign * (TALL - 8);
        path += curve(x, at, sx, top) + `L${sx} ${end}`;
        x = sx;
        at = end;
      }
      const end = z.y + z.h / 2 - sign * (z.h / 2 + 4);
      e.path = path + curve(x, at, z.x, end);
      e.tip = [z.x, end, sign > 0 ? 90 : -90];
    }
  }
  // To and from a saved value: level inside a lane, below the row if a box stands in the way, and up or down in between.
  const blocked = (n, way) => all.some(o => o !== n && o.lane === n.lane && o.at === n.at && way * (o.x - n.x) > 0);
  const channels = new Map();
  const channel = n => {  // below the row of a box; several edges lie beside each other
    const key = n.lane + n.at, used = channels.get(key) || [];
    if (!used.includes(n.key)) channels.set(key, [...used, n.key]);
    return n.y + TALL + 4 + 3 * (channels.get(key).indexOf(n.key) % 4);
  };
  for (const e of edges) {
    const a = nodes.get(e.from), z = nodes.get(e.to);
    if (e.path) continue;
    let x = a.x + a.w / 2, y = a.y + a.h / 2, path = `M${x} ${y}`;
    if (a.lane !== "s" && blocked(a, 1)) {
      x -= 12;
      y = channel(a);
      path = `M${x} ${a.y + a.h}V${y - 5}Q${x} ${y} ${x + 5} ${y}`;
    }
    if (a.lane !== "s") { x = f.width + 2; path += `H${x}`; }
    if (z.lane === "s") {
      e.tip = [z.x - z.w / 2 - 4, z.y + z.h / 2, 0];
      e.path = path + across(x, y, e.tip[0], e.tip[1]);
    } else if (blocked(z, -1)) {
      const to = z.x - z.w / 2 + 12, level = channel(z);
      e.tip = [to, z.y + z.h + 4, -90];
      e.path = path + across(x, y, offsetB - 2, level) + `H${to - 5}Q${to} ${level} ${to} ${level - 5}V${z.y + z.h + 4}`;
    } else {
      e.tip = [z.x - z.w / 2 - 4, z.y + z.h / 2, 0];
      e.path = path + across(x, y, offsetB - 2, e.tip[1]) + `H${e.tip[0]}`;
    }
  }
  const tangent = all.find(n => n.r && n.r.op === "tangent"), output = nodes.get("f:output 0");
  if (tangent && output) {
    const bottom = Math.max(output.y, tangent.y) + 78;
    edges.push({
      from: output.key, to: tangent.key, cls: "loss", tip: [tangent.x, tangent.y + tangent.h + 4, -90],
      path: `M${output.x} ${output.y + output.h}C${output.x} ${bottom} ${tangent.x} ${bottom} ${tangent.x} ${tangent.y + tangent.h + 4}`,
    });
  }
  return { nodes, edges, forward: f.width, gutter, backward: b.width, width: f.width + gutter + b.width, height };
}
