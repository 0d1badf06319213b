// Pure functions of the charts.

/** Add the steps of all curves of a reply, which has differences of whole steps. */
export function unpacked(reply) {
  for (const { curves } of [reply, ...reply.void]) {
    for (const curve of Object.values(curves)) {
      let step = 0;
      curve.steps ??= curve.by.map((by) => (step += by));
    }
  }
  return reply;
}

/** Curves of all steps, with the finer points of a reply instead of those of its range. */
export function refined(curves, reply, [low, high]) {
  return Object.fromEntries(Object.keys(curves).filter((name) => reply[name]).map((name) => {
    const [all, fine] = [curves[name], reply[name]];
    const before = all.steps.findIndex((step) => step >= Math.min(low, fine.steps[0]));
    const after = all.steps.findLastIndex((step) => step <= Math.max(high, fine.steps.at(-1))) + 1;
    const part = (key) => [...all[key].slice(0, before < 0 ? all.steps.length : before), ...fine[key], ...all[key].slice(after)];
    return [name, { steps: part("steps"), values: part("values") }];
  }));
}

/** Exponential moving average without the bias of its start; gaps stay gaps. */
export function smoothed(values, factor) {
  let mean = 0;
  let weight = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return value;
    mean = mean * factor + value * (1 - factor);
    weight = weight * factor + (1 - factor);
    return mean / weight;
  });
}

/** Curves as columns over all their steps: [steps, ...values]. A step that a curve lacks is undefined,
 * which draws no gap; null draws one. */
export function joined(curves) {
  return uPlot.join(curves.map((curve) => [curve.steps, curve.values]), curves.map(() => [1, 1]));
}

/** True if all values are positive and the greatest is `factor` times the least. */
export function spans(columns, factor) {
  let [low, high] = [Infinity, 0];
  for (const column of columns) {
    for (const value of column) {
      if (value === null || value === undefined) continue;
      if (value <= 0) return false;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  return high / low > factor;
}

/** Grid lines of a logarithmic axis: whole powers of ten. */
export function decades(_, splits) {
  return splits.map((value) => (value > 0 && Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-9 ? value : null));
}

/** Hatch the steps from `first` to `last`. */
export function hatch(plot, first, last, colour) {
  const { ctx, bbox } = plot;
  const end = bbox.left + bbox.width;
  const left = Math.max(bbox.left, plot.valToPos(first, "x", true));
  const right = Math.min(end, plot.valToPos(last, "x", true));
  if (!(right > left)) return;
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, bbox.top, right - left, bbox.height);
  ctx.clip();
  ctx.strokeStyle = colour;
  ctx.globalAlpha = 0.35;
  ctx.beginPath();
  for (let across = left - bbox.height; across < right; across += 10 * devicePixelRatio) {
    ctx.moveTo(across, bbox.top + bbox.height);
    ctx.lineTo(across + bbox.height, bbox.top);
  }
  ctx.stroke();
  ctx.restore();
}

/** Draw a line at the step whose values are held. */
export function held(plot, step, colour) {
  const { ctx, bbox } = plot;
  const left = step === null ? -1 : plot.valToPos(step, "x", true);
  if (!(left >= bbox.left && left <= bbox.left + bbox.width)) return;
  ctx.save();
  ctx.fillStyle = colour;
  ctx.fillRect(left, bbox.top, devicePixelRatio, bbox.height);
  ctx.restore();
}

/** Write number and name of each line at its end, the names apart from each other. */
export function label(plot, order, name, surface) {
  const { ctx, bbox } = plot;
  const wide = ctx.canvas.width - bbox.left - bbox.width > 60 * devicePixelRatio;
  const ends = order.flatMap(([, column, colour, index]) => {
    let [first, at] = plot.series[0].idxs ?? [0, -1];
    while (at >= first && plot.data[column][at] == null) at -= 1;
    if (at < first) return [];
    const text = wide && name(index).length > 14 ? `${name(index).slice(0, 13)}…` : wide ? name(index) : "";
    return [{ left: plot.valToPos(plot.data[0][at], "x", true), top: plot.valToPos(plot.data[column][at], "y", true), text: `${index} ${text}`, colour }];
  });
  ctx.save();
  ctx.font = `${12 * devicePixelRatio}px Inter, sans-serif`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  let last = -Infinity;
  for (const { left, top, text, colour } of ends.sort((one, other) => one.top - other.top)) {
    last = Math.max(top, last + 13 * devicePixelRatio);
    ctx.fillStyle = colour;
    ctx.strokeStyle = surface;
    ctx.lineWidth = 4 * devicePixelRatio;
    ctx.strokeText(text, left + 5 * devicePixelRatio, last);
    ctx.fillText(text, left + 5 * devicePixelRatio, last);
  }
  ctx.restore();
}
