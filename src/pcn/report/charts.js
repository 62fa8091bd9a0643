// Small drawings, by hand: a line chart over epochs, and a spectrum on a logarithmic scale.

const SVG = 'http://www.w3.org/2000/svg';
const FEW = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#8b6fc9', '#7f7f7f']; // Okabe and Ito's
const DEPTH = ['#3b528b', '#2c728e', '#21918c', '#28ae80', '#5ec962', '#addc30']; // viridis: from the first layer to the last

function make(name, attributes = {}, text = null) {
  const node = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach(([key, value]) => node.setAttribute(key, value));
  if (text !== null) node.textContent = text;
  return node;
}

function colourOf(index, all) {
  if (all <= FEW.length) return FEW[index];
  const place = (index / (all - 1)) * (DEPTH.length - 1);
  const low = Math.min(Math.floor(place), DEPTH.length - 2);
  const mixed = [1, 3, 5].map((at) => {
    const [first, second] = [DEPTH[low], DEPTH[low + 1]].map((colour) => parseInt(colour.slice(at, at + 2), 16));
    return Math.round(first + (second - first) * (place - low)).toString(16).padStart(2, '0');
  });
  return `#${mixed.join('')}`;
}

function pathOf(points) {
  return points.map(([x, y], index) => `${index ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`).join('');
}

function ticks(low, high, about) {
  const rough = (high - low) / about;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * size).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

// Lines over epochs: accuracy above, effective dimensions below on a logarithmic scale.
function historyChart(history, lines, width) {
  const left = 46, right = 14, top = 22, upper = 110, gap = 44, lower = lines.length ? 200 : 0;
  const height = top + upper + (lower ? gap + lower : 0) + 34;
  const svg = make('svg', { width, height, viewBox: `0 0 ${width} ${height}`, role: 'img' });
  svg.append(make('title', {}, 'Validation accuracy and effective dimensions over epochs'));
  const seen = [...history.epochs, ...lines.flatMap((line) => line.points)].map(([epoch]) => epoch);
  const switched = history.switch ? history.switch.at : 1;
  const last = Math.max(...seen, switched); // a run may stop between the switch and an epoch's end
  const first = last > 1 && switched >= 1 ? 1 : 0; // a switch may come before the first epoch has ended
  const x = (epoch) => left + ((epoch - first) / (last - first)) * (width - left - right);
  const bottom = height - 34;
  ticks(first, last, Math.max(2, width / 90)).filter(Number.isInteger).forEach((epoch) => {
    svg.append(make('text', { x: x(epoch), y: bottom + 18, 'text-anchor': 'middle' }, epoch));
  });
  svg.append(make('text', { x: width - right, y: bottom + 33, 'text-anchor': 'end' }, 'epoch'));
  if (history.epochs.length) accuracyPanel(svg, history, x, { left, right, top, height: upper, width });
  if (lower) dimensionPanel(svg, history, lines, x, { left, right, top: top + upper + gap, height: lower, width, last });
  if (history.switch) {
    const at = x(history.switch.at);
    svg.append(make('line', { class: 'switch', x1: at, x2: at, y1: top - 4, y2: top + upper }));
    if (lower) svg.append(make('line', { class: 'switch', x1: at, x2: at, y1: top + upper + gap, y2: bottom }));
    svg.append(make('text', { class: 'strong', x: at, y: top + upper + 14, 'text-anchor': 'middle' }, 'switch'));
  }
  return svg;
}

function accuracyPanel(svg, history, x, box) {
  const values = history.epochs.map(([, value]) => value).concat(history.switch ? [history.switch.after] : []);
  const spread = Math.max(Math.max(...values) - Math.min(...values), 1);
  const high = Math.min(100, Math.max(...values) + 0.08 * spread);
  const low = Math.max(0, Math.min(...values) - 0.08 * spread);
  const y = (value) => box.top + ((high - value) / (high - low)) * box.height;
  ticks(low, high, 4).forEach((value) => {
    svg.append(make('line', { class: 'grid', x1: box.left, x2: box.width - box.right, y1: y(value), y2: y(value) }));
    svg.append(make('text', { x: box.left - 7, y: y(value) + 4, 'text-anchor': 'end' }, `${value}%`));
  });
  svg.append(make('text', { class: 'strong', x: 2, y: box.top - 9 }, 'Validation accuracy'));
  svg.append(make('path', { class: 'accuracy', d: pathOf(history.epochs.map(([epoch, value]) => [x(epoch), y(value)])) }));
  const [epoch, end] = history.epochs[history.epochs.length - 1];
  svg.append(make('text', { class: 'strong', x: x(epoch), y: box.top - 9, 'text-anchor': 'end' }, `${end.toFixed(2)}%`));
  if (history.switch) svg.append(make('circle', { class: 'after-switch', cx: x(history.switch.at), cy: y(history.switch.after), r: 4 }));
}

function dimensionPanel(svg, history, lines, x, box) {
  const values = lines.flatMap((line) => line.points.map(([, value]) => value)).concat(lines.map((line) => line.rank || 1));
  const high = Math.max(2, ...values) * 1.15, low = Math.min(...values) / 1.15;
  const y = (value) => box.top + (Math.log(high / value) / Math.log(high / low)) * box.height;
  const dense = (Math.log(2) / Math.log(high / low)) * box.height > 15;
  const marks = [1, 10, 100, 1000, 1e4].flatMap((size) => (dense ? [size, 2 * size, 5 * size] : [size]));
  marks.filter((mark) => mark >= low && mark <= high).forEach((mark) => {
    svg.append(make('line', { class: 'grid', x1: box.left, x2: box.width - box.right, y1: y(mark), y2: y(mark) }));
    svg.append(make('text', { x: box.left - 7, y: y(mark) + 4, 'text-anchor': 'end' }, count(mark)));
  });
  svg.append(make('text', { class: 'strong', x: 2, y: box.top - 9 }, 'Effective dimensions'));
  lines.forEach((line) => {
    const group = make('g', { 'data-line': line.index });
    const style = { class: 'dimension', stroke: line.colour };
    const points = line.points.map(([epoch, value]) => [x(epoch), y(value)]);
    group.append(make('path', { ...style, d: pathOf(points) }));
    if (points.length === 1) group.append(make('circle', { cx: points[0][0], cy: points[0][1], r: 3, fill: line.colour }));
    if (history.switch && line.rank !== null) {
      const after = [[x(history.switch.at), y(line.rank)], [x(box.last), y(line.rank)]];
      group.append(make('path', { ...style, class: 'dimension after', d: pathOf(after) }));
      group.append(make('circle', { cx: after[0][0], cy: after[0][1], r: 4, fill: line.colour }));
    }
    svg.append(group);
  });
}

// One activation's eigenvalues, the largest over its groups; what the run keeps is shaded, the slider is a line.
function spectrumChart(activation, kept, width) {
  const height = 92, left = 40, right = 4, top = 8, bottom = 16;
  const longest = Math.max(1, ...activation.values.map((values) => values.length));
  const values = Array.from({ length: longest }, (_, index) => Math.max(...activation.values.map((group) => group[index] || 0)));
  const high = values[0] || 1;
  const low = Math.max(Math.min(...values.filter((value) => value > 0), high) , high * 1e-9);
  const end = activation.complete ? activation.width : longest;
  const x = (index) => left + (index / end) * (width - left - right);
  const y = (value) => top + (high <= low ? 0 : (Math.log(high / Math.max(value, low)) / Math.log(high / low)) * (height - top - bottom));
  const svg = make('svg', { width, height, viewBox: `0 0 ${width} ${height}`, role: 'img' });
  svg.append(make('title', {}, `Variance along each of ${end} directions, on a logarithmic scale`));
  const step = Math.max(1, Math.ceil(longest / 160));
  const points = [];
  values.forEach((value, index) => {
    if (index % step === 0 || index === longest - 1) points.push([index, value]);
  });
  const steps = points.flatMap(([index, value], place) => [[x(index), y(value)], [x(place + 1 < points.length ? points[place + 1][0] : index + 1), y(value)]]);
  svg.append(make('line', { class: 'grid', x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  if (kept !== null) {
    const until = steps.filter(([at]) => at <= x(kept) + 1e-6);
    const [, edge] = until.length ? until[until.length - 1] : [0, top];
    const area = [[x(0), height - bottom], ...until, [x(kept), edge], [x(kept), height - bottom]];
    svg.append(make('path', { class: 'held', d: `${pathOf(area)}Z` }));
    svg.append(make('line', { class: 'run', x1: x(kept), x2: x(kept), y1: top, y2: height - bottom }));
  }
  svg.append(make('path', { class: 'curve', d: pathOf(steps) }));
  svg.append(make('text', { x: left - 5, y: top + 5, 'text-anchor': 'end' }, variance(high)));
  svg.append(make('text', { x: left - 5, y: height - bottom, 'text-anchor': 'end' }, variance(low)));
  svg.append(make('text', { x: left, y: height - 3 }, '1'));
  svg.append(make('text', { x: width - right, y: height - 3, 'text-anchor': 'end' }, activation.complete ? count(end) : `${count(end)} of ${count(activation.width)}`));
  const mark = make('line', { class: 'mark', y1: top, y2: height - bottom });
  const level = make('line', { class: 'level', x1: left, x2: width - right });
  svg.append(mark, level);
  function update(rank, rule) {
    mark.setAttribute('visibility', rank === null ? 'hidden' : 'visible');
    if (rank !== null) {
      mark.setAttribute('x1', x(Math.min(rank, end)));
      mark.setAttribute('x2', x(Math.min(rank, end)));
    }
    const shown = rule.mode === 'variance' && rule.value <= high && rule.value >= low;
    level.setAttribute('visibility', shown ? 'visible' : 'hidden');
    if (shown) {
      level.setAttribute('y1', y(rule.value));
      level.setAttribute('y2', y(rule.value));
    }
  }
  return { svg, update };
}
