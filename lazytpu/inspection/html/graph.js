// Source lines or clusters from top to bottom in the order of their first op; arcs lead from producers to consumers.
{
  const { nodes, edges } = data.graph, H = 22, BAR = 120, FIGURE = 70, NS = "http://www.w3.org/2000/svg";
  const most = Math.max(...nodes.map(n => n[2]), 1e-9), height = nodes.length * H + 12;
  const svg = (tag, attributes, text) => {
    const made = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  let labels = [];
  const lay = () => {
    const width = Math.max(560, byId("arcs").clientWidth), left = Math.min(520, width * 0.45), start = left + BAR + FIGURE;
    const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
    const arcs = edges.map(([a, b, bytes]) => {
      const y1 = a * H + 17, y2 = b * H + 17, reach = Math.min((width - start - 12) / 0.75, 26 + Math.abs(b - a) * 11);
      const path = svg("path", { d: `M${start} ${y1} C${start + reach} ${y1} ${start + reach} ${y2} ${start} ${y2}`, class: b > a ? "down" : "up",
        "stroke-width": Math.min(5, 0.7 + Math.log10(1 + bytes) / 3), opacity: 0.45 });
      path.append(svg("title", {}, `${nodes[a][0]} → ${nodes[b][0]}: ${size(bytes)}`));
      return path;
    });
    labels = nodes.map(([name, ops, time, kind], i) => {
      const y = i * H + 6, group = svg("g", { class: "node", "aria-label": `${name}: ${count(ops)} ops, ${micros(time)}` });
      const letters = Math.floor((left - 14) / 7.3), written = source(data.places.indexOf(name)), room = letters - name.length - 3;
      const shown = written && room > 8 ? `${written.slice(0, room)}   ${name}` : name;
      group.append(svg("rect", { x: 0, y, width: start, height: H - 1, fill: "transparent" }),
        svg("text", { x: left - 10, y: y + 15, "text-anchor": "end" }, shown.length > letters ? "…" + shown.slice(1 - letters) : shown),
        svg("rect", { x: left, y: y + 4, width: Math.max(1, BAR * time / most), height: 12, rx: 3, style: `fill:${colour(kind)}` }),
        svg("text", { x: left + BAR + 8, y: y + 15, opacity: 0.75 }, micros(time)));
      const showArcs = () => arcs.forEach((arc, e) => arc.setAttribute("opacity", edges[e][0] === i || edges[e][1] === i ? 1 : 0.08));
      const showAll = () => arcs.forEach(arc => arc.setAttribute("opacity", 0.45));
      for (const event of ["mouseenter", "focus"]) group.addEventListener(event, showArcs);
      for (const event of ["mouseleave", "blur"]) group.addEventListener(event, showAll);
      group.addEventListener("mousemove", event => tip(event, `${name}\n${count(ops)} ops, ${micros(time)}`));
      group.addEventListener("mouseleave", event => tip(event, ""));
      return pressable(group, () => searchFor(name));
    });
    picture.append(...arcs, ...labels);
    byId("arcs").replaceChildren(nodes.length ? picture : element("p", {}, "There is no op in this program."));
  };
  const fade = () => {
    const names = state.hits && new Set([...state.hitPlaces].map(place).concat(state.hits.map(i => data.ops[i][CLUSTER])));
    labels.forEach((group, i) => group.setAttribute("opacity", !names || names.has(nodes[i][0]) ? 1 : 0.25));
  };
  lay();
  watchers.push(fade);
  addEventListener("resize", () => { lay(); fade(); });
}
