// All ops, or those that match the search. Only visible rows are created.
{
  const view = byId("table"), rows = byId("rows"), H = 22;
  view.prepend(element("div", { className: "row head" }, ...["", "op", "result", "source line", "time", "bytes"].map(name => element("span", {}, name))));
  let list = [];
  const draw = () => {
    const first = Math.max(0, Math.floor(view.scrollTop / H) - 10), last = Math.min(list.length, first + Math.ceil(view.clientHeight / H) + 20);
    rows.replaceChildren(...list.slice(first, last).map((number, i) => {
      const op = data.ops[number];
      return element("div", { className: "row" + (number === state.selected ? " on" : ""), style: `top:${(first + i) * H}px`, onclick: () => select(number), title: op[TEXT] },
        element("span", {}, number), element("code", {}, element("i", { style: `background:${colour(op[KIND])}` }), op[KIND]), element("code", {}, op[TYPE]),
        element("code", {}, place(op[PLACE])), element("span", {}, micros(op[TIME])), element("span", {}, size(op[BYTES])));
    }));
    if (!list.length) rows.replaceChildren(element("p", {}, data.ops.length ? "No op matches this search; Escape ends it." : "There is no op in this program."));
  };
  view.addEventListener("scroll", () => requestAnimationFrame(draw));
  view.addEventListener("keydown", event => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !list.length) return;
    event.preventDefault();
    const at = Math.max(0, Math.min(list.length - 1, list.indexOf(state.selected) + step));
    view.scrollTop = Math.max(Math.min(view.scrollTop, at * H), (at + 2) * H - view.clientHeight);
    select(list[at]);
  });
  watchers.push(() => {
    list = state.hits || data.ops.map((_, i) => i);
    rows.style.height = Math.max(list.length, 2) * H + "px";
    draw();
  });
}
new ResizeObserver(() => document.documentElement.style.setProperty("--above", document.querySelector("header").offsetHeight + "px")).observe(document.querySelector("header"));
searchFor(decodeURIComponent(location.hash.startsWith("#?") ? location.hash.slice(2) : ""));
document.body.dataset.ready = "yes";
