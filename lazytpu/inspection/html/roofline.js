// Each op with products as a dot: its operations per byte of HBM against its rate, under the ceilings of the chip.
if (byId("roofline")) {
  const { peak, bandwidth, dots } = data.roofline, W = 640, H = 300, L = 56, B = 34, NS = "http://www.w3.org/2000/svg";
  const X = [0.1, 1e5], Y = [peak / 1e5, peak * 1.6];
  const at = (value, [low, high], from, to) => from + (to - from) * (Math.log(Math.min(Math.max(value, low), high) / low) / Math.log(high / low));
  const x = value => at(value, X, L, W - 8), y = value => at(value, Y, H - B, 8);
  const svg = (tag, attributes, text) => {
    const made = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const ridge = peak / bandwidth, rate = flops => `${(flops / 1e12).toFixed(flops < 1e13 ? 2 : 0)} TFLOP/s`;
  const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "roofline" });
  picture.append(svg("path", { d: `M${x(X[0])} ${y(X[0] * bandwidth)} L${x(ridge)} ${y(peak)} L${W - 8} ${y(peak)}`, class: "roof" }),
    svg("text", { x: W - 8, y: y(peak) - 6, "text-anchor": "end" }, `peak ${rate(peak)}`),
    svg("text", { x: W - 8, y: H - 6, "text-anchor": "end" }, "operations per byte of HBM"), svg("text", { x: 4, y: 14 }, "rate"));
  for (let power = 0; power <= 4; power += 1) picture.append(svg("text", { x: x(10 ** power), y: H - B + 14, "text-anchor": "middle" }, String(10 ** power)));
  const drawn = dots.map(([name, where, flops, bytes, us, kind]) => {
    const achieved = flops / Math.max(us * 1e-6, 1e-12);
    const dot = svg("circle", { cx: x(flops / Math.max(bytes, 1)), cy: y(achieved), r: 3 + 9 * Math.sqrt(us / (data.summary.seconds_us || 1)), style: `fill:${colour(kind)}` });
    dot.addEventListener("mousemove", event => tip(event, `${name}\n${place(where)} ${source(where)}\n${micros(us)}, ${rate(achieved)}, ${(100 * achieved / peak).toFixed(1)} % of the peak`));
    dot.addEventListener("mouseleave", event => tip(event, ""));
    picture.append(dot);
    return pressable(dot, () => searchFor(place(where)));
  });
  byId("roofline").append(picture);
  watchers.push(() => drawn.forEach((dot, i) => dot.setAttribute("opacity", !state.hits || state.hitPlaces.has(dots[i][1]) ? 0.75 : 0.1)));
}
// The timeline as a Chrome trace, for Perfetto.
byId("export").addEventListener("click", () => {
  const lanes = [...new Set(data.timeline.map(span => span[0]))];
  const events = lanes.map((lane, tid) => ({ ph: "M", name: "thread_name", pid: 0, tid, args: { name: lane } })).concat(data.timeline.map(span => ({
    ph: "X", name: span[3], pid: 0, tid: lanes.indexOf(span[0]), ts: span[1], dur: span[2] - span[1], args: { line: place(span[4]), module: span[6] } })));
  const file = URL.createObjectURL(new Blob([JSON.stringify({ traceEvents: events })], { type: "application/json" }));
  element("a", { href: file, download: `${data.name}.trace.json` }).click();
  byId("export").dataset.events = events.length;
});
