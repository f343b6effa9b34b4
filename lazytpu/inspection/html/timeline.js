// Lanes of what runs when, and below them the memory over time.
{
  const spans = data.timeline, end = Math.max(data.summary.seconds_us, ...spans.slice(-50).map(s => s[2]), 1e-3);
  const lanes = [...new Set(spans.map(s => s[0]))];
  const perLane = new Map(lanes.map(lane => [lane, spans.filter(s => s[0] === lane).sort((a, b) => a[1] - b[1])]));
  const canvas = byId("timeline"), below = byId("memory");
  canvas.height = 34 + 46 * Math.max(1, lanes.length);
  let from = 0, to = end;
  const LEFT = 80;
  const x = (t, width) => LEFT + (t - from) / (to - from) * (width - LEFT - 6);
  const t = (px, width) => from + (px - LEFT) / (width - LEFT - 6) * (to - from);
  const paint = (surface, drawing) => {
    const rect = surface.getBoundingClientRect(), ratio = devicePixelRatio || 1;
    const height = surface.logical ||= surface.height, width = rect.width || 900;
    surface.width = width * ratio; surface.height = height * ratio; surface.style.height = height + "px";
    const pen = surface.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "12px system-ui, sans-serif";
    drawing(pen, width, height);
  };
  const axis = (pen, width, y) => {
    pen.fillStyle = style("--soft"); pen.strokeStyle = style("--line");
    const rough = (to - from) / 8, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(f => f * power).find(f => f >= rough);
    for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) {
      const at = x(tick, width);
      pen.fillRect(at, y - 4, 1, 4);
      pen.fillText(micros(tick), Math.min(at + 3, width - 52), y - 3);
    }
  };
  const hit = span => !state.hits || (state.module ? `${span[6]}.`.startsWith(`${state.module}.`) : state.hitPlaces.has(span[4])) || state.matches(span[3].toLowerCase());
  const draw = () => {
    const chosen = state.selected >= 0 ? data.ops[state.selected][PLACE] : -1;
    const inks = new Map(Object.values(FAMILIES).map(([name]) => [name, style(name)])), text = style("--text"), inside = style("--inside");
    paint(canvas, (pen, width, height) => {
      lanes.forEach((lane, row) => {
        const y = 20 + 46 * row;
        pen.globalAlpha = 1; pen.fillStyle = style("--soft"); pen.fillText(lane, 4, y + 22);
        let last = -1, lastColour = "";
        for (const span of perLane.get(lane)) {
          if (span[2] < from || span[1] > to) continue;
          const left = Math.max(x(span[1], width), LEFT), right = Math.min(x(span[2], width), width);
          const fill = inks.get(colourName(span[5])), faded = !hit(span);
          if (right - left < 0.4 && right < last && fill === lastColour && !state.hits) continue;
          pen.globalAlpha = faded ? 0.12 : 1;
          pen.fillStyle = fill;
          pen.fillRect(left, y, Math.max(right - left - (right - left > 3 ? 0.6 : 0), 0.5), 34);
          if (span[4] === chosen) { pen.fillStyle = text; pen.fillRect(left - 1, y - 3, Math.max(right - left, 2), 3); }
          if (right - left > 60) { pen.save(); pen.beginPath(); pen.rect(left, y, right - left - 4, 34); pen.clip(); pen.fillStyle = inside; pen.fillText(span[3].split(/[ ,]/)[0], left + 4, y + 15); pen.fillText(place(span[4]).split("/").pop(), left + 4, y + 29); pen.restore(); }
          last = right; lastColour = fill;
        }
      });
      pen.globalAlpha = 1;
      axis(pen, width, height);
    });
    paint(below, (pen, width, height) => {
      const top = Math.max(...data.memory.map(m => m[1]), 1), y = bytes => height - 8 - bytes / top * (height - 26);
      pen.fillStyle = style("--soft"); pen.fillText("memory", 4, 30); pen.fillText(size(top), 4, 46);
      pen.beginPath(); pen.moveTo(LEFT, height - 8);
      let before = null;
      for (const [time, bytes] of data.memory) {
        const at = Math.min(Math.max(x(time, width), LEFT), width - 6);
        if (before !== null) pen.lineTo(at, y(before));
        pen.lineTo(at, y(bytes));
        before = bytes;
      }
      if (before !== null) pen.lineTo(Math.max(LEFT, Math.min(x(end, width), width - 6)), y(before));
      pen.lineTo(Math.max(LEFT, Math.min(x(end, width), width - 6)), height - 8);
      pen.globalAlpha = 0.3; pen.fill(); pen.globalAlpha = 1; pen.strokeStyle = style("--soft"); pen.stroke();
      const peak = data.memory.reduce((best, m) => m[1] > best[1] ? m : best, [0, -1]);
      const at = x(peak[0], width);
      if (at >= LEFT && at <= width) { pen.fillStyle = text; pen.fillRect(at, 4, 1.5, height - 12); pen.fillText("peak", Math.min(at + 4, width - 34), 13); }
    });
  };
  watchers.push(draw);
  const find = event => {
    const box = canvas.getBoundingClientRect(), row = Math.floor((event.clientY - box.top - 16) / 46), time = t(event.clientX - box.left, box.width);
    const list = perLane.get(lanes[row]) || [];
    let low = 0, high = list.length - 1;
    while (low < high) { const middle = (low + high + 1) >> 1; list[middle][1] <= time ? low = middle : high = middle - 1; }
    return list[low] && list[low][1] <= time && list[low][2] >= time ? list[low] : null;
  };
  canvas.addEventListener("mousemove", event => {
    const span = find(event);
    tip(event, span && `${span[3]}\n${span[6] ? span[6] + " " : ""}${place(span[4])} ${source(span[4])}\n${micros(span[2] - span[1])}, from ${micros(span[1])}`);
  });
  below.addEventListener("mousemove", event => {
    const box = below.getBoundingClientRect(), time = t(event.clientX - box.left, box.width);
    const now = data.memory.filter(m => m[0] <= time).pop();
    tip(event, now && `${size(now[1])} at ${micros(time)}`);
  });
  const move = (start, wide = to - from) => { from = Math.max(0, Math.min(end - wide, start)); to = from + wide; draw(); };
  const zoom = (factor, centre) => {
    const wide = Math.min(end, Math.max(end / 1e5, (to - from) * factor));
    move(centre - (centre - from) / (to - from) * wide, wide);
  };
  let pressed = null;
  for (const surface of [canvas, below]) {
    surface.addEventListener("mouseleave", event => tip(event, ""));
    surface.addEventListener("wheel", event => {
      event.preventDefault();
      const box = surface.getBoundingClientRect();
      zoom(Math.exp(event.deltaY * 0.0015), t(event.clientX - box.left, box.width));
    }, { passive: false });
    surface.addEventListener("keydown", event => {
      const wide = to - from, middle = (from + to) / 2, keys = { "+": () => zoom(0.5, middle), "-": () => zoom(2, middle),
        "0": () => zoom(Infinity, middle), ArrowLeft: () => move(from - wide / 4), ArrowRight: () => move(from + wide / 4) };
      if (keys[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); keys[event.key](); }
    });
    surface.addEventListener("mousedown", event => { pressed = { at: event.clientX, from, to, width: surface.clientWidth, moved: false }; });
    surface.addEventListener("dblclick", () => zoom(Infinity, 0));
  }
  addEventListener("mousemove", event => {
    if (!pressed) return;
    pressed.moved ||= Math.abs(pressed.at - event.clientX) > 3;
    move(pressed.from + (pressed.at - event.clientX) / (pressed.width - LEFT - 6) * (pressed.to - pressed.from));
  });
  addEventListener("mouseup", event => {
    const span = pressed && !pressed.moved && event.target === canvas ? find(event) : null;
    if (span) searchFor(place(span[4]));
    pressed = null;
  });
  addEventListener("resize", draw);
  const alike = new Map();
  for (const [what, bytes] of data.alive) { const key = `${what} ${size(bytes)}`; alike.set(key, (alike.get(key) || 0) + 1); }
  byId("alive").textContent = alike.size ? "Largest at the peak: " + [...alike].map(([what, n]) => n > 1 ? `${n} × ${what}` : what).join(", ") : "";
}
