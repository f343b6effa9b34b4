// The figures at the head, advice, and the source lines by time.
{
  const s = data.summary;
  const card = (value, what) => byId("cards").append(element("div", { className: "card" }, element("b", {}, value), element("span", {}, what)));
  card((s.complete ? "" : "at least ") + micros(s.seconds_us), `a step on a ${s.generation}, estimated`);
  card(data.ops.length.toLocaleString("en"), `ops in ${s.kernels.toLocaleString("en")} kernels`);
  card(size(s.peak), `memory at its peak, of ${size(s.capacity)}`);
  card(`${data.arguments.length.toLocaleString("en")}`, `arguments, ${data.arguments.filter(a => a[3]).length} overwritten in place`);
  card(micros(s.path_us), "longest chain of ops, by the model");
  if (s.complete && s.utilisation !== undefined) card((100 * s.utilisation).toFixed(0) + " %", "of the matrix unit's peak");
  if (s.exposed_us > 0) card(micros(s.exposed_us), "waiting for other chips");
  data.advice.forEach(([text, fix, where]) => byId("advice").append(
    element("div", { className: "hint" }, text + " ", element("b", {}, fix), " ", element("code", {}, where))));

  const lines = data.lines, total = lines.reduce((sum, line) => sum + line[1], 0) || 1;
  let shown = 14;
  const draw = () => {
    const rows = lines.slice(0, shown).map(([i, time, count, kind]) => element("div", {
      className: "bar" + (state.hitPlaces?.has(i) ? " hit" : ""), onclick: () => searchFor(place(i)) },
      element("code", { title: place(i) + "\n" + source(i) }, place(i), element("small", {}, " " + source(i))),
      element("i", { style: `width:${100 * time / (lines[0][1] || 1)}%;background:${colour(kind)}` }),
      element("span", {}, `${micros(time)}, ${s.complete ? `${(100 * time / total).toFixed(0)} %, ` : ""}${count} ops`)));
    byId("by-line").replaceChildren(...rows);
    if (lines.length > shown) byId("by-line").append(element("button", { onclick: () => { shown = lines.length; draw(); } }, `all ${lines.length} lines`));
  };
  watchers.push(draw);
}
