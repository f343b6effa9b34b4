// The figures at the head, advice, and the source lines by time.
{
  const s = data.summary;
  const card = (value, what) => byId("cards").append(element("div", { className: "card" }, element("b", {}, value), element("span", {}, what)));
  card((s.complete ? "" : "at least ") + micros(s.seconds_us), `per step on a ${s.generation}, estimated`);
  card(count(data.ops.length), `ops, compiled to ${count(s.kernels)}`);
  card(size(s.peak), `peak memory, of ${size(s.capacity)}`);
  card(count(data.arguments.length), `arguments, ${count(data.arguments.filter(a => a[3] !== null).length)} overwritten in place`);
  card(micros(s.path_us), "longest chain of ops");
  if (s.complete) card((100 * s.utilisation).toFixed(0) + " %", "of the matrix unit's peak");
  if (s.exposed_us > 0) card(micros(s.exposed_us), "waiting for other chips");
  data.advice.forEach(([text, fix, where]) => byId("advice").append(
    element("div", { className: "hint" }, text + " ", element("b", {}, fix), " ", element("code", {}, where))));

  const kinds = new Set([...data.lines.map(line => line[3]), ...data.timeline.map(span => span[5]), ...data.ops.map(op => op[KIND])].map(familyOf));
  byId("legend").append(...Object.keys(FAMILIES).filter(name => kinds.has(name)).map(name =>
    element("span", {}, element("i", { style: `background:var(${FAMILIES[name][0]})` }), name)));

  const lines = data.lines, total = lines.reduce((sum, line) => sum + line[1], 0) || 1;
  let shown = 14;
  const draw = () => {
    const rows = lines.slice(0, shown).map(([i, time, ops, kind, flops]) => pressable(element("div", { className: "bar" + (state.hitPlaces?.has(i) ? " hit" : "") },
      element("code", { title: place(i) + "\n" + source(i) }, place(i), element("small", {}, " " + source(i))),
      element("i", { style: `width:${100 * time / (lines[0][1] || 1)}%;background:${colour(kind)}` }),
      element("span", {}, `${micros(time)}, ${s.complete ? `${(100 * time / total).toFixed(0)} %, ` : ""}${ops ? count(ops) + " ops" : ""}${flops && time ? `, ${(1e8 * flops / time / data.roofline.peak).toFixed(0)} % of peak` : ""}`)), () => searchFor(place(i))));
    const focused = [...byId("by-line").children].indexOf(document.activeElement);
    byId("by-line").replaceChildren(...rows);
    if (lines.length > shown) byId("by-line").append(element("button", { onclick: () => { shown = lines.length; draw(); } }, `all ${count(lines.length)} lines`));
    if (!lines.length) byId("by-line").append("There is no op in this program.");
    if (focused >= 0) byId("by-line").children[focused]?.focus();
  };
  watchers.push(draw);

  const modules = data.modules, longest = Math.max(...modules.map(([, forward, backward]) => forward + backward), 1e-9);
  const closed = new Set(modules.length > 40 ? modules.map(([path]) => path).filter(path => path.split(".").length > 1) : []);
  const tree = () => {
    const visible = ([path]) => ![...closed].some(parent => path.startsWith(parent + "."));
    byId("by-module").replaceChildren(...modules.filter(visible).map(([path, forward, backward]) => {
      const parts = path.split("."), inside = modules.some(([other]) => other.startsWith(path + "."));
      const toggle = event => { event.stopPropagation(); closed.has(path) ? closed.delete(path) : closed.add(path); tree(); };
      const row = pressable(element("div", { className: "bar" + (state.module === path ? " hit" : "") },
        element("code", { title: path, style: `padding-left:${1.2 * (parts.length - 1)}em` },
          inside ? element("button", { className: "fold", ariaLabel: "fold", onclick: toggle, onkeydown: event => event.stopPropagation() }, closed.has(path) ? "▸" : "▾") : "", parts.at(-1)),
        element("i", { title: `forward ${micros(forward)}, backward ${micros(backward)}`,
          style: `width:${100 * (forward + backward) / longest}%;background:linear-gradient(90deg,var(--soft) ${100 * forward / (forward + backward || 1)}%,var(--line) 0)` }),
        element("span", {}, `${micros(forward + backward)}${s.complete ? `, ${(100 * (forward + backward) / (s.seconds_us || 1)).toFixed(0)} %` : ""}`)),
        () => searchFor(path));
      return row;
    }));
  };
  if (modules.length) watchers.push(tree);
}
