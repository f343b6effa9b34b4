// Shared by all parts: the data, numbers as text, colours, and pressable elements.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = id => document.getElementById(id);
const KIND = 0, TYPE = 1, PLACE = 2, TIME = 3, BYTES = 4, CLUSTER = 5, TEXT = 6, OPERANDS = 7, MODULE = 8;
const element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) name in made ? made[name] = value : made.setAttribute(name, value);
  made.append(...children);
  return made;
};
// Everything clickable can be reached by Tab and pressed by Enter or space.
const pressable = (target, action) => {
  target.setAttribute("tabindex", 0);
  target.setAttribute("role", "button");
  target.addEventListener("click", action);
  target.addEventListener("keydown", event => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); action(event); } });
  return target;
};
const count = number => number.toLocaleString("en");
const micros = us => us >= 10000 ? (us / 1000).toFixed(1) + " ms" : us >= 100 ? us.toFixed(0) + " µs" : us.toFixed(us >= 1 ? 1 : 2) + " µs";
const size = bytes => {
  let unit = 0;
  while (Math.abs(bytes) >= 1000 && unit < 4) { bytes /= 1000; unit += 1; }
  return bytes.toFixed(unit && bytes < 100 ? 1 : 0) + " " + ["B", "kB", "MB", "GB", "TB"][unit];
};
const place = number => data.places[number] || "no source line";
const source = number => data.sources[number] || "";

// Kinds of work, each with its own colour in the style sheet.
const FAMILIES = {
  "matrix products": ["--products", /^(dot|convolution|attention|custom-call)/],
  "between chips": ["--between", /^(all[_-]|reduce[_-]scatter|collective)/],
  "gather, scatter, sort, copy": ["--moves", /^(gather|scatter|sort|dynamic|template|copy|slice)/],
  "reductions": ["--reductions", /reduce|argreduce|cumulative/],
  "random numbers": ["--random", /^(random|rng)/],
  "elementwise and others": ["--elementwise", /^/],
};
const familyOf = what => Object.keys(FAMILIES).find(name => FAMILIES[name][1].test(what));
const colourName = what => FAMILIES[familyOf(what)][0];
const colour = what => `var(${colourName(what)})`;
const style = name => getComputedStyle(document.documentElement).getPropertyValue(name);

const tip = (event, text) => {
  const box = byId("tip");
  box.hidden = !text;
  box.textContent = text || "";
  box.style.left = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8) + "px";
  box.style.top = Math.min(event.clientY + 16, innerHeight - box.offsetHeight - 8) + "px";
};
const watchers = [];
const changed = () => watchers.forEach(draw => draw());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
