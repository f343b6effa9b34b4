// Source lines or clusters from top to bottom in the order of their first op; arcs lead from what makes to what reads.
{
  const { nodes, edges, by } = data.graph, H = 22, LEFT = 520, NS = "http://www.w3.org/2000/svg";
  const most = Math.max(...nodes.map(n => n[2]), 1e-9), width = 1180, height = nodes.length * H + 12;
  const svg = (tag, attributes) => {
    const made = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };
  // Equal clusters have one colour: the name before the "#" is their function's.
  const functions = [...new Set(nodes.map(n => n[0].split(" #")[0]))];
  const shade = (name, backward) => by === "cluster" ? `hsl(${functions.indexOf(name.split(" #")[0]) * 137.5 % 360} 55% 50%)` : backward ? "#1769aa" : "#2da44e";
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
  const arcs = edges.map(([a, b, bytes]) => {
    const y1 = a * H + 17, y2 = b * H + 17, reach = Math.min(440, 26 + Math.abs(b - a) * 11), start = LEFT + 190;
    const path = svg("path", { d: `M${start} ${y1} C${start + reach} ${y1} ${start + reach} ${y2} ${start} ${y2}`, fill: "none",
      stroke: b > a ? "#1769aa" : "#d98e04", "stroke-width": Math.min(5, 0.7 + Math.log10(1 + bytes) / 3), opacity: 0.35 });
    const title = svg("title", {});
    title.textContent = `${nodes[a][0]} → ${nodes[b][0]}: ${size(bytes)}`;
    path.append(title);
    picture.append(path);
    return path;
  });
  const labels = nodes.map(([name, ops, time, backward], i) => {
    const y = i * H + 6, group = svg("g", { class: "node" });
    const text = svg("text", { x: LEFT - 10, y: y + 15, "text-anchor": "end" });
    const written = source(data.places.indexOf(name)), shown = written ? `${written.slice(0, 66 - Math.min(30, name.length))}   ${name}` : name;
    text.textContent = shown.length > 70 ? "…" + shown.slice(-69) : shown;
    const figures = svg("text", { x: LEFT + 128, y: y + 15, opacity: 0.65 });
    figures.textContent = micros(time);
    group.append(svg("rect", { x: 0, y, width: LEFT + 190, height: H - 1, fill: "transparent" }), text,
      svg("rect", { x: LEFT, y: y + 4, width: Math.max(1, 120 * time / most), height: 12, rx: 3, fill: shade(name, backward) }), figures);
    group.addEventListener("mouseenter", () => arcs.forEach((arc, e) => arc.setAttribute("opacity", edges[e][0] === i || edges[e][1] === i ? 1 : 0.06)));
    group.addEventListener("mouseleave", () => arcs.forEach(arc => arc.setAttribute("opacity", 0.35)));
    group.addEventListener("click", () => searchFor(name));
    group.addEventListener("mousemove", event => tip(event, `${name}\n${ops} ops, ${micros(time)}`));
    group.addEventListener("mouseleave", event => tip(event, ""));
    picture.append(group);
    return group;
  });
  byId("arcs").append(picture);
  watchers.push(() => {
    const names = state.hits && new Set(state.hits.flatMap(i => [place(data.ops[i][PLACE]), data.ops[i][CLUSTER]]));
    labels.forEach((group, i) => group.setAttribute("opacity", !names || names.has(nodes[i][0]) ? 1 : 0.25));
  });
}
