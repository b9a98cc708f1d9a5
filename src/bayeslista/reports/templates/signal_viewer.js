"use strict";
// Signal viewer: draws one at a time from the JSON beside the drawing.
for (const drawing of document.querySelectorAll(".widget .drawing")) {
  const viewer = drawing.closest(".widget");
  const find = (name) => viewer.querySelector(name);
  const { level, total, start, signals, names } = JSON.parse(find("script").textContent);
  const choice = find(".choice"), slider = find(".slider"), sameScale = find(".same-scale");
  const previous = find(".previous"), next = find(".next"), details = find("details");
  const hint = find(".readout").textContent;
  const left = 52, right = 8, top = 24, height = 440, strip = 96;
  let current = start, pointed = null, layout = null;

  const range = (signal) => {
    let low = 0, high = 0;
    for (const values of [signal.truth, signal.mean, signal.low ?? [], signal.high ?? []]) {
      for (const value of values) {
        if (value < low) low = value;
        if (value > high) high = value;
      }
    }
    return [low, high];
  };
  const ranges = signals.map(range);
  const everywhere = [Math.min(...ranges.map((each) => each[0])), Math.max(...ranges.map((each) => each[1]))];

  const short = (value) => String(Number(value.toPrecision(4))).replace("-", "\u2212");
  const called = (i) => names ? `${i} (${names[i]})` : String(i);
  const escaped = (text) => text.replace(/[&<>]/g, (mark) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[mark]);
  const listed = (n, one, many) => `${n} ${n === 1 ? one : many}`;

  function ticks(low, high, count) {
    const target = (high - low) / count, power = 10 ** Math.floor(Math.log10(target));
    const step = power * [1, 2, 5, 10].find((each) => each * power >= target);
    const places = [];
    for (let i = Math.ceil(low / step); i * step <= high; i++) places.push(i * step);
    return places;
  }

  function draw() {
    const signal = signals[current], n = signal.truth.length, distributions = "low" in signal;
    const width = Math.max(240, drawing.clientWidth);
    let [low, high] = sameScale.checked ? everywhere : ranges[current];
    if (low === high) [low, high] = [-1, 1];
    const margin = 0.06 * (high - low);
    low -= margin;
    high += margin;
    const bottom = distributions ? height - strip - 52 : height - 40;
    const space = (width - left - right) / n, line = Math.min(8, Math.max(0.5, 0.5 * space));
    const radius = Math.min(5, Math.max(1.8, 0.55 * space));
    const x = (i) => (left + (i + 0.5) * space).toFixed(1);
    const y = (value) => (top + ((high - value) / (high - low)) * (bottom - top)).toFixed(1);
    const indices = [...signal.truth.keys()];
    const outside = new Set(signal.outside ?? []);
    const ring = (i) => `M${x(i)} ${y(signal.truth[i])}m${-radius} 0a${radius} ${radius} 0 1 0 ${2 * radius} 0` +
      `a${radius} ${radius} 0 1 0 ${-2 * radius} 0`;
    const path = (kind, steps, thickness) =>
      `<path class="${kind}"${thickness ? ` stroke-width="${thickness.toFixed(1)}"` : ""} d="${steps.join("")}"/>`;
    const parts = [];
    for (const tick of ticks(low, high, 6)) {
      const kind = tick === 0 ? "axis" : "grid";
      parts.push(`<line class="${kind}" x1="${left}" x2="${width - right}" y1="${y(tick)}" y2="${y(tick)}"/>`);
      parts.push(`<text x="${left - 6}" y="${y(tick)}" dy="0.35em" text-anchor="end">${short(tick)}</text>`);
    }
    const places = ticks(0, Math.max(1, n - 1), Math.min(n, width / 60)).filter((i) => Number.isInteger(i) && i < n);
    const foot = height - 22;
    for (const i of places) parts.push(`<text x="${x(i)}" y="${foot}" text-anchor="middle">${i}</text>`);
    parts.push(`<text x="${(left + width - right) / 2}" y="${height - 5}" text-anchor="middle">coefficient</text>`);
    parts.push(`<text x="${left}" y="${top - 10}">value</text>`);
    if (distributions) {
      parts.push(path("interval", indices.map((i) => `M${x(i)} ${y(signal.low[i])}V${y(signal.high[i])}`), line));
    }
    const dots = indices.map((i) => `M${x(i)} ${y(signal.mean[i])}h0`);
    parts.push(path("mean", dots, Math.min(6, Math.max(2, 0.8 * space))));
    parts.push(path("truth", indices.filter((i) => signal.truth[i] !== 0 && !outside.has(i)).map(ring)));
    parts.push(path("outside", [...outside].map(ring)));
    if (distributions) {
      const base = height - 46, tall = strip - 22;
      const bars = (kind, chosen) => path(
        kind, chosen.map((i) => `M${x(i)} ${base}v${(-tall * signal.active[i]).toFixed(1)}`), line);
      for (const chance of [0, 0.5, 1]) {
        const place = base - tall * chance, kind = chance === 0 ? "axis" : "grid";
        parts.push(`<line class="${kind}" x1="${left}" x2="${width - right}" y1="${place}" y2="${place}"/>`);
        parts.push(`<text x="${left - 6}" y="${place}" dy="0.35em" text-anchor="end">${chance}</text>`);
      }
      parts.push(`<text x="${left}" y="${base - tall - 7}">P(active)</text>`);
      const active = indices.filter((i) => signal.truth[i] !== 0);
      parts.push(bars("bar", indices.filter((i) => signal.truth[i] === 0)), bars("bar-active", active));
      parts.push(path("mark", active.map((i) => `M${x(i)} ${base + 2}v5`)));
    }
    parts.push('<line class="pointed" visibility="hidden"/>');
    drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    drawing.innerHTML = parts.join("");
    layout = { space, n, x };
    point(pointed);
  }

  function facts(signal) {
    const active = signal.truth.filter((value) => value !== 0).length, n = signal.truth.length;
    const missed = "outside" in signal ? `; ${signal.outside.length} outside their ${level} intervals` : "";
    return `Row ${signal.row}, rank ${signal.rank} of ${total}: relative error ${signal.error}; ` +
      `${active} of ${listed(n, "coefficient", "coefficients")} not zero${missed}.`;
  }

  function numbers(signal, i) {
    const own = [short(signal.truth[i]), short(signal.mean[i])];
    if (!("low" in signal)) return own;
    return [...own, `${short(signal.low[i])} to ${short(signal.high[i])}`, signal.active[i].toFixed(3)];
  }

  function point(i) {
    pointed = i !== null && i < layout.n ? i : null;
    const rule = find(".pointed"), signal = signals[current];
    rule.setAttribute("visibility", pointed === null ? "hidden" : "visible");
    if (pointed === null) {
      find(".readout").textContent = hint;
      return;
    }
    for (const [name, value] of [["x1", layout.x(i)], ["x2", layout.x(i)], ["y1", top], ["y2", height - 36]]) {
      rule.setAttribute(name, value);
    }
    const [truth, mean, interval, active] = numbers(signal, i);
    const distribution = interval === undefined ? "" : `, ${level} interval ${interval}, P(active) ${active}`;
    find(".readout").textContent = `Coefficient ${called(i)}: truth ${truth}, predicted mean ${mean}${distribution}.`;
  }

  function tabulate() {
    const signal = signals[current], distributions = "low" in signal;
    const shown = [...signal.truth.keys()].filter(
      (i) => signal.truth[i] !== 0 || signal.outside?.includes(i) || (distributions ? signal.active[i] > 0.5 : signal.mean[i] !== 0));
    const head = ["coefficient", "truth", "predicted mean", ...(distributions ? [`${level} interval`, "P(active)"] : [])];
    const row = (i) => `<tr><th scope="row">${escaped(called(i))}</th><td>${numbers(signal, i).join("</td><td>")}</td></tr>`;
    const which = distributions ? "P(active) exceeds one half or the truth is outside" : "the prediction is not";
    find(".numbers").innerHTML = `<caption>Coefficients that are not zero, or where ${which}.</caption>` +
      `<thead><tr><th scope="col">${head.join('</th><th scope="col">')}</th></tr></thead>` +
      `<tbody>${shown.map(row).join("")}</tbody>`;
  }

  function show(i) {
    current = Math.min(signals.length - 1, Math.max(0, i));
    const words = facts(signals[current]);
    choice.value = slider.value = String(current);
    slider.setAttribute("aria-valuetext", words);
    previous.disabled = current === 0;
    next.disabled = current === signals.length - 1;
    find(".facts").textContent = words;
    drawing.setAttribute("aria-label", `Drawing of the signal. ${words}`);
    draw();
    if (details.open) tabulate();
  }

  choice.addEventListener("change", () => show(Number(choice.value)));
  slider.addEventListener("input", () => show(Number(slider.value)));
  previous.addEventListener("click", () => show(current - 1));
  next.addEventListener("click", () => show(current + 1));
  sameScale.addEventListener("change", draw);
  details.addEventListener("toggle", () => details.open && tabulate());
  const follow = (event) => {
    const place = event.clientX - drawing.getBoundingClientRect().left - left;
    point(Math.min(layout.n - 1, Math.max(0, Math.floor(place / layout.space))));
  };
  drawing.addEventListener("pointermove", follow);
  drawing.addEventListener("pointerdown", follow);
  drawing.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && point(null));
  document.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const taken = event.target.closest?.("input[type=range], select, .wide");
    if (!step || taken || event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    show(current + step);
  });
  new ResizeObserver(draw).observe(drawing);
  show(current);
}
