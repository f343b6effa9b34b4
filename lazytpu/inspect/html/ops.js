// All ops, or those that were searched for; only the rows that are seen are made.
{
  const view = byId("table"), rows = byId("rows"), H = 22;
  const head = element("div", { className: "row head" }, ...["", "op", "result", "source line", "time", "bytes"].map(name => element("span", {}, name)));
  view.prepend(head);
  head.style.position = "sticky";
  let list = [];
  const draw = () => {
    const first = Math.max(0, Math.floor(view.scrollTop / H) - 10), last = Math.min(list.length, first + Math.ceil(view.clientHeight / H) + 20);
    rows.replaceChildren(...list.slice(first, last).map((number, i) => {
      const op = data.ops[number];
      return element("div", { className: "row" + (number === state.selected ? " on" : ""), style: `top:${(first + i) * H}px`, onclick: () => select(number), title: op[TEXT] },
        element("span", {}, number), element("code", { style: `color:${colour(op[KIND])}` }, op[KIND]), element("code", {}, op[TYPE]),
        element("code", {}, place(op[PLACE])), element("span", {}, micros(op[TIME])), element("span", {}, size(op[BYTES])));
    }));
  };
  view.addEventListener("scroll", () => requestAnimationFrame(draw));
  watchers.push(() => {
    list = state.hits || data.ops.map((_, i) => i);
    rows.style.height = list.length * H + "px";
    draw();
  });
}
searchFor(decodeURIComponent(location.hash.startsWith("#?") ? location.hash.slice(2) : ""));
document.body.dataset.ready = "yes";
