// A slider over the passes, with stops above their names: op counts, kinds, and changed lines.
if (byId("passes")) {
  const slider = byId("pass");
  let shown = 400, now = 0;
  const stops = data.passes.map((pass, i) => element("button", { title: pass.name, onclick: () => go(i) }, pass.name));
  byId("stops").append(...stops);
  const draw = () => {
    const pass = data.passes[now];
    slider.setAttribute("aria-valuetext", pass.name);
    byId("pass-name").textContent = `${now + 1}. ${pass.name}: ${count(pass.before)} → ${count(pass.after)} ops, ${pass.ms} ms`;
    stops.forEach((stop, i) => stop.classList.toggle("on", i === now));
    const kinds = Object.entries(pass.kinds).map(([kind, n]) => `${n > 0 ? "+" : "−"}${count(Math.abs(n))} ${kind}`);
    byId("kinds").textContent = kinds.join(", ") || (pass.changed ? "the same kinds of ops" : "no changes");
    const lines = pass.lines.slice(0, shown).map(line => line === null ? element("div", { className: "gap" }, "⋯") :
      element("div", { className: { "+": "plus", "-": "minus" }[line[0]] || "" }, `${line[0]} ${line[1]}`));
    if (pass.lines.length > shown) lines.push(element("button", { onclick: () => { shown += 2000; draw(); } }, `${count(pass.lines.length - shown)} more lines`));
    if (pass.left_out) lines.push(element("div", { className: "gap" }, `${count(pass.left_out)} lines are not in this file: lazytpu-show passes FILE --diff ${pass.name}`));
    byId("diff").replaceChildren(...lines);
    byId("diff").hidden = !lines.length;
    byId("slider").scrollLeft = stops[now].offsetLeft - byId("slider").clientWidth / 2;
  };
  const go = i => { now = Math.max(0, Math.min(data.passes.length - 1, i)); slider.value = now; shown = 400; draw(); };
  slider.addEventListener("input", () => go(Number(slider.value)));
  byId("before").addEventListener("click", () => go(now - 1));
  byId("after").addEventListener("click", () => go(now + 1));
  const most = data.passes.findIndex(pass => pass.changed > 0);
  go(most < 0 ? 0 : most);
}
