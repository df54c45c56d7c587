"use strict";
// Convergence plots: one block an experiment, drawn again from its data whenever a control changes.
(() => {
  const DATA = JSON.parse(document.getElementById("data").textContent);
  const W = Math.max(320, Math.min(540, document.documentElement.clientWidth - 60)), H = W < 440 ? 300 : 340;
  const BOX = { left: 66, right: 14, top: 26, bottom: 46 };
  const NS = "http://www.w3.org/2000/svg";

  const svg = (tag, attributes, parent, text) => {
    const node = document.createElementNS(NS, tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  };
  const make = (tag, parent, className, text) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  };

  // Numbers on axes and in tips.
  const short = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e5 || size < 1e-3) return value.toExponential(1).replace(".0e", "e").replace("e+", "e");
    return String(+value.toPrecision(4));
  };
  const exact = (value) => (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5 ? value.toPrecision(5) : value.toExponential(3));

  const linearTicks = (low, high) => {
    const raw = (high - low) / 5 || 1, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= raw);
    const ticks = [];
    for (let t = Math.ceil(low / step) * step; t <= high + 1e-9 * step; t += step) ticks.push(+t.toPrecision(12));
    return ticks;
  };
  const logTicks = (low, high) => {
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
    const every = Math.max(1, Math.ceil((last - first) / 7));
    const marks = Math.log10(high / low) <= 3.5 ? [1, 2, 5] : [1]; // enough labels on a short axis
    const ticks = [];
    for (let e = first; e <= last; e += every) for (const m of marks) ticks.push(m * 10 ** e);
    const inside = ticks.filter((t) => t >= low * 0.999 && t <= high * 1.001);
    return inside.length > 1 ? inside : linearTicks(low, high);
  };

  const scaleOf = (low, high, from, to, log) => {
    const map = log ? Math.log10 : (v) => v;
    const a = map(low), b = map(high) === a ? a + 1 : map(high);
    const scale = (value) => from + ((map(value) - a) / (b - a)) * (to - from);
    scale.inverse = (place) => {
      const t = a + ((place - from) / (to - from)) * (b - a);
      return log ? 10 ** t : t;
    };
    return scale;
  };

  function block(root, runs) {
    const labels = [...new Set(runs.map((run) => run.label))];
    const has = (field) => runs.some((run) => run.curves[field].some((v) => v !== null));
    const state = { x: "work", log: true, parts: new Set(["training", "validation"]), off: new Set() };
    const panels = [{ field: "loss", title: "objective, and loss on the validation set", axis: "loss" }];
    if (has("accuracy")) panels.push({ field: "accuracy", title: "accuracy", axis: "accuracy" });

    const controls = make("div", root, "controls");
    const charts = make("div", root, "charts");
    const tip = make("div", root, "tip");
    const box = (parent, type, name, text, checked, change) => {
      const label = make("label", parent);
      const input = make("input", label);
      Object.assign(input, { type, name, checked });
      input.addEventListener("change", () => { change(input.checked); draw(); });
      label.append(text);
      return label;
    };
    const toggled = (set, key) => (on) => (on ? set.add(key) : set.delete(key));
    const methods = make("fieldset", controls);
    for (const label of labels) {
      const run = runs.find((r) => r.label === label);
      const line = make("b");
      line.style.background = run.colour;
      const entry = box(methods, "checkbox", "", label, true, (on) => toggled(state.off, label)(!on));
      entry.insertBefore(line, entry.lastChild);
    }
    const parts = make("fieldset", controls);
    if (has("validation_loss")) {
      box(parts, "checkbox", "", "training (solid)", true, toggled(state.parts, "training"));
      box(parts, "checkbox", "", "validation (dashed)", true, toggled(state.parts, "validation"));
    }
    const against = make("fieldset", controls);
    const group = `x-${root.dataset.experiment}`;
    box(against, "radio", group, "work units", true, () => { state.x = "work"; });
    box(against, "radio", group, "seconds", false, () => { state.x = "seconds"; });
    box(make("fieldset", controls), "checkbox", "", "log loss axis", true, (on) => { state.log = on; });

    const curvesOf = (field, log) => {
      const found = [];
      for (const run of runs) {
        if (state.off.has(run.label)) continue;
        for (const part of state.parts) {
          const name = part === "training" ? field : `validation_${field}`;
          const points = run.curves[name].map((y, i) => [run.curves[state.x][i], y])
            .filter(([x, y]) => x !== null && y !== null && (!log || y > 0));
          if (points.length) found.push({ run, part, points });
        }
      }
      return found;
    };

    function draw() {
      charts.replaceChildren();
      tip.style.visibility = "hidden";
      for (const panel of panels) chart(panel);
    }

    function chart({ field, title, axis }) {
      const log = state.log && field === "loss";
      const curves = curvesOf(field, log);
      const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": title }, charts);
      svg("text", { x: BOX.left, y: 15, "font-weight": 600 }, picture, title);
      const right = W - BOX.right, bottom = H - BOX.bottom;
      if (!curves.length) {
        svg("text", { x: W / 2, y: H / 2, "text-anchor": "middle" }, picture, "nothing chosen");
        return;
      }
      const xs = curves.flatMap((c) => c.points.map((p) => p[0])), ys = curves.flatMap((c) => c.points.map((p) => p[1]));
      let low = Math.min(...ys), high = Math.max(...ys);
      const margin = log ? (high / low) ** 0.04 : 0.04 * (high - low || 1);
      [low, high] = log ? [low / margin, high * margin] : [low - margin, high + margin];
      if (low === high) [low, high] = [low * 0.9, high * 1.1];
      const x = scaleOf(0, Math.max(...xs) || 1, BOX.left, right, false);
      const y = scaleOf(low, high, bottom, BOX.top, log);
      for (const t of linearTicks(0, Math.max(...xs) || 1)) {
        svg("line", { x1: x(t), x2: x(t), y1: BOX.top, y2: bottom, class: "grid" }, picture);
        svg("text", { x: x(t), y: bottom + 17, "text-anchor": "middle" }, picture, short(t));
      }
      for (const t of log ? logTicks(low, high) : linearTicks(low, high)) {
        svg("line", { x1: BOX.left, x2: right, y1: y(t), y2: y(t), class: "grid" }, picture);
        svg("text", { x: BOX.left - 7, y: y(t) + 4, "text-anchor": "end" }, picture, short(t));
      }
      svg("text", { x: (BOX.left + right) / 2, y: H - 8, "text-anchor": "middle" }, picture, state.x === "work" ? "work units" : "seconds");
      svg("text", { transform: `translate(14 ${(BOX.top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, picture, axis);
      if (state.x === "work") {
        const refined = curves.map((c) => c.run.curves).find((c) => c.level.some((v) => v > 0));
        if (refined) refined.level.forEach((v, i) => {
          if (i && v !== refined.level[i - 1]) svg("line", { x1: x(refined.work[i]), x2: x(refined.work[i]), y1: BOX.top, y2: bottom, class: "level" }, picture);
        });
      }
      const first = {};
      for (const { run, part, points } of curves) {
        first[run.label] ??= run.seed;
        svg("polyline", {
          points: points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" "),
          fill: "none", stroke: run.colour, "stroke-width": 1.8, "stroke-linejoin": "round",
          "stroke-dasharray": part === "training" ? "none" : "6 4", opacity: first[run.label] === run.seed ? 1 : 0.35,
        }, picture);
      }
      svg("rect", { x: BOX.left, y: BOX.top, width: right - BOX.left, height: bottom - BOX.top, class: "frame" }, picture);
      const guide = svg("line", { y1: BOX.top, y2: bottom, class: "guide" }, picture);
      picture.addEventListener("pointermove", (event) => hover(event, picture, curves, x, guide));
      picture.addEventListener("pointerleave", () => { guide.style.visibility = tip.style.visibility = "hidden"; });
    }

    // The last value of every curve up to the pointer.
    function hover(event, picture, curves, x, guide) {
      const frame = picture.getBoundingClientRect();
      const place = ((event.clientX - frame.left) / frame.width) * W;
      if (place < BOX.left || place > W - BOX.right) {
        guide.style.visibility = tip.style.visibility = "hidden";
        return;
      }
      const at = x.inverse(place);
      guide.setAttribute("x1", place);
      guide.setAttribute("x2", place);
      guide.style.visibility = "visible";
      tip.replaceChildren(make("div", null, "", `${short(at)} ${state.x === "work" ? "work units" : "seconds"}`));
      for (const { run, part, points } of curves) {
        const point = points.filter((p) => p[0] <= at).pop();
        if (!point) continue;
        const row = make("div", tip);
        make("b", row).style.background = run.colour;
        row.append(`${run.label}, seed ${run.seed}, ${part}: ${exact(point[1])}`);
      }
      const outer = root.getBoundingClientRect();
      const left = event.clientX - outer.left;
      tip.style.left = left > outer.width / 2 ? "auto" : `${left + 16}px`;
      tip.style.right = left > outer.width / 2 ? `${outer.width - left + 16}px` : "auto";
      tip.style.top = `${event.clientY - outer.top + 12}px`;
      tip.style.visibility = "visible";
    }
    draw();
  }

  for (const root of document.querySelectorAll(".plots")) block(root, DATA[root.dataset.experiment]);
})();
