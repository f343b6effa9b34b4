// What all parts share: the data, numbers as text, the search, the selected op.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = id => document.getElementById(id);
const KIND = 0, TYPE = 1, PLACE = 2, TIME = 3, BYTES = 4, KERNEL = 5, CLUSTER = 6, TEXT = 7, OPERANDS = 8;
const element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) name in made ? made[name] = value : made.setAttribute(name, value);
  made.append(...children);
  return made;
};
const micros = us => us >= 10000 ? (us / 1000).toFixed(1) + " ms" : us >= 100 ? us.toFixed(0) + " µs" : us.toFixed(us >= 1 ? 1 : 2) + " µs";
const size = bytes => {
  let unit = 0;
  while (Math.abs(bytes) >= 1000 && unit < 4) { bytes /= 1000; unit += 1; }
  return bytes.toFixed(unit && bytes < 100 ? 1 : 0) + " " + ["B", "kB", "MB", "GB", "TB"][unit];
};
const place = number => data.places[number] || "no source line";
const source = number => data.sources[number] || "";
const FAMILIES = {
  "matrix products": ["#1769aa", /^(dot|convolution|attention|custom-call)/],
  "collectives": ["#d1242f", /^(all[_-]|reduce[_-]scatter|collective)/],
  "gather, scatter, sort": ["#8250df", /^(gather|scatter|sort|dynamic|template|copy|slice)/],
  "reductions": ["#2da44e", /reduce|argreduce|cumulative/],
  "random numbers": ["#8c959f", /^(random|rng)/],
  "elementwise and the rest": ["#e08a1e", /^/],
};
const familyOf = what => Object.keys(FAMILIES).find(name => FAMILIES[name][1].test(what));
const colour = what => FAMILIES[familyOf(what)][0];

const users = data.ops.map(() => []);
data.ops.forEach((op, i) => new Set(op[OPERANDS]).forEach(o => { if (o >= 0) users[o].push(i); }));
const haystack = data.ops.map(op => [op[KIND], op[TYPE], place(op[PLACE]), source(op[PLACE]), op[CLUSTER], op[TEXT]].join("\n").toLowerCase());
const state = { query: "", hits: null, hitPlaces: null, selected: -1 };
const watchers = [];
const changed = () => watchers.forEach(draw => draw());
function search(text) {
  state.query = text.trim().toLowerCase();
  const words = state.query.split(/\s+/).filter(Boolean);
  state.hits = words.length ? data.ops.map((_, i) => i).filter(i => words.every(w => haystack[i].includes(w))) : null;
  state.hitPlaces = state.hits && new Set(state.hits.map(i => data.ops[i][PLACE]));
  byId("found").textContent = state.hits ? `${state.hits.length.toLocaleString("en")} of ${data.ops.length.toLocaleString("en")} ops` : "";
  changed();
}
const searchFor = text => { byId("search").value = text; search(text); };
let waiting = 0;
byId("search").addEventListener("input", event => { clearTimeout(waiting); waiting = setTimeout(() => search(event.target.value), 120); });
document.addEventListener("keydown", event => {
  if (event.key === "/" && event.target.tagName !== "INPUT") { event.preventDefault(); byId("search").focus(); }
  if (event.key === "Escape") { searchFor(""); select(-1); }
});
const tip = (event, text) => {
  const box = byId("tip");
  box.hidden = !text;
  box.textContent = text || "";
  box.style.left = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8) + "px";
  box.style.top = Math.min(event.clientY + 16, innerHeight - box.offsetHeight - 8) + "px";
};

function select(number) {
  state.selected = number;
  const panel = byId("details");
  panel.hidden = number < 0;
  if (number >= 0) {
    const op = data.ops[number];
    const link = o => o >= 0 ? element("a", { onclick: () => select(o) }, `${o} ${data.ops[o][KIND]}`) : `argument ${data.arguments[~o][0]}`;
    const list = (name, items) => element("div", {}, name + ": ", ...items.flatMap((each, i) => i ? [", ", each] : [each]));
    const inKernel = op[KERNEL] < 0 ? [] : data.ops.map((_, i) => i).filter(i => data.ops[i][KERNEL] === op[KERNEL] && i !== number);
    panel.replaceChildren(
      element("button", { onclick: () => select(-1) }, "close"),
      element("b", {}, `${number} ${op[KIND]}`), " ", element("a", { onclick: () => searchFor(place(op[PLACE])) }, place(op[PLACE])),
      element("pre", {}, (source(op[PLACE]) ? source(op[PLACE]) + "\n" : "") + op[TEXT]),
      element("div", {}, `${micros(op[TIME])} by the model, ${size(op[BYTES])}` + (op[CLUSTER] ? `, in ${op[CLUSTER]}` : "")),
      list("reads", op[OPERANDS].map(link)), list("read by", users[number].slice(0, 40).map(link)),
      list("fused with", inKernel.slice(0, 40).map(link)));
  }
  changed();
}
