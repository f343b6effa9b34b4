// The search and the selected op.
const users = data.ops.map(() => []);
data.ops.forEach((op, i) => new Set(op[OPERANDS]).forEach(o => { if (o >= 0) users[o].push(i); }));

// The arguments that an op reads, as they are or in another shape, and the one whose new value it computes.
const SHAPES = new Set(["reshape", "transpose", "convert", "broadcast_in_dim", "slice"]);
const parameters = [];
data.ops.forEach((op, i) => parameters[i] = new Set(op[OPERANDS].flatMap(o =>
  o < 0 ? [~o] : SHAPES.has(data.ops[o][KIND]) ? [...parameters[o]] : [])));
data.arguments.forEach(([, , , update], a) => { if (update !== null && update >= 0) parameters[update].add(a); });

// Lines, clusters and arguments by name: the exact name stands for their ops and no others.
const named = new Map(data.places.map((_, number) => [place(number), { ops: [], place: number }]));
const add = (name, i) => named.has(name) ? named.get(name).ops.push(i) : named.set(name, { ops: [i] });
const addModule = (path, i) => { add(path, i); named.get(path).module = path; };
data.ops.forEach((op, i) => {
  add(place(op[PLACE]), i);
  if (op[CLUSTER]) add(op[CLUSTER], i);
  op[MODULE].split(".").forEach((_, n, parts) => { if (parts[0]) addModule(parts.slice(0, n + 1).join("."), i); });
  parameters[i].forEach(a => add(data.arguments[a][0], i));
});

const haystack = data.ops.map((op, i) => [op[KIND], op[TYPE], place(op[PLACE]), source(op[PLACE]), op[CLUSTER], op[MODULE], op[TEXT],
  ...[...parameters[i]].map(a => data.arguments[a][0])].join("\n").toLowerCase());
// Every word must occur, and numbers as a whole: ":1" is not in ":10", "blocks.1" not in "blocks.12".
const matcher = text => {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean).map(word => new RegExp(
    (/^\d/.test(word) ? "(?<!\\d)" : "") + word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&") + (/\d$/.test(word) ? "(?!\\d)" : "")));
  return where => words.every(word => word.test(where));
};

const state = { hits: null, hitPlaces: null, module: "", matches: () => true, selected: -1 };
function search(text) {
  const query = text.trim(), exactly = named.get(query);
  const matches = state.matches = exactly ? () => false : matcher(query);
  state.module = exactly?.module || "";
  state.hits = !query ? null : exactly ? exactly.ops : data.ops.map((_, i) => i).filter(i => matches(haystack[i]));
  state.hitPlaces = state.hits && new Set(exactly?.place !== undefined ? [exactly.place] : state.hits.map(i => data.ops[i][PLACE]));
  byId("found").textContent = state.hits ? `${count(state.hits.length)} of ${count(data.ops.length)} ops` : "";
  changed();
}
const searchFor = text => { byId("search").value = text; search(text); };
let waiting = 0;
byId("search").addEventListener("input", event => { clearTimeout(waiting); waiting = setTimeout(() => search(event.target.value), 120); });
document.addEventListener("keydown", event => {
  if (event.key === "/" && event.target.tagName !== "INPUT") { event.preventDefault(); byId("search").focus(); }
  if (event.key === "Escape") { searchFor(""); select(-1); }
});

function select(number) {
  state.selected = number;
  const panel = byId("details");
  panel.hidden = number < 0;
  if (number >= 0) {
    const op = data.ops[number];
    const searching = text => pressable(element("a", {}, text), () => searchFor(text));
    const link = o => o < 0 ? searching(data.arguments[~o][0]) : pressable(element("a", {}, `${o} ${data.ops[o][KIND]}`), () => select(o));
    const list = (name, items) => element("div", {}, name + ": ", ...items.slice(0, 40).flatMap((item, i) => i ? [", ", link(item)] : [link(item)]),
      items.length > 40 ? ` and ${count(items.length - 40)} more` : items.length ? "" : "nothing");
    panel.replaceChildren(
      element("button", { onclick: () => select(-1) }, "close"),
      element("b", {}, `${number} ${op[KIND]}`), " ", searching(place(op[PLACE])),
      element("pre", {}, (source(op[PLACE]) ? source(op[PLACE]) + "\n" : "") + op[TEXT]),
      element("div", {}, `${micros(op[TIME])}, its share of its line; ${size(op[BYTES])}`, ...[CLUSTER, MODULE].filter(n => op[n]).flatMap(n => [", in ", searching(op[n])])),
      list("reads", op[OPERANDS]), list("read by", users[number]));
  }
  changed();
}
