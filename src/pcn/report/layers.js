// One row for each layer, and the sums over them, as the slider stands.

const choice = { rule: { ...data.rule }, skipLarger: data.config.skip_larger, multipleOf: data.config.multiple_of };
const rows = [];

function showLayer(layer) {
  const width = layer.inputs / layer.groups;
  const groups = layer.groups > 1 ? `, ${layer.groups} groups` : '';
  const title = element('h3', '', layer.name, element('small', '', `${layer.kind} ${count(layer.inputs)} → ${count(layer.outputs)}${groups}`));
  const body = element('div', 'body', title);
  const why = element('p', 'why'), spectrum = element('div', 'spectrum');
  if (layer.kept) {
    const kept = bar('this run', '');
    const { rank, outputs, trained_outputs: trained } = layer.kept;
    if (rank === null && trained < outputs) kept.update(trained, outputs, `${count(trained)} of ${count(outputs)} outputs`);
    else kept.update(rank, width, rank === null ? 'as it is' : `${count(rank)} of ${count(width)}`);
    body.append(kept.node);
  }
  const tried = layer.activation === null ? null : bar('slider', 'try');
  if (tried) body.append(tried.node);
  body.append(why);
  const row = { layer, width, why, tried, chart: null, node: element('article', 'layer panel', body, spectrum) };
  row.node.dataset.layer = layer.name;
  if (layer.activation !== null) {
    drawToWidth(spectrum, (room) => {
      row.chart = spectrumChart(data.activations[layer.activation], layer.kept ? layer.kept.rank : null, room);
      if (row.plan) row.chart.update(row.plan.rank, choice.rule);
      return row.chart.svg;
    });
  }
  rows.push(row);
  byId('layers').append(row.node);
}

function updateLayer(row, plan) {
  row.plan = plan;
  if (row.tried) {
    const least = plan.exact ? '' : '≥ ';
    row.tried.update(plan.rank, row.width, plan.rank === null ? 'as it is' : `${least}${count(plan.rank)} of ${count(row.width)}`);
  }
  const { kept } = row.layer;
  const said = [];
  if (kept && kept.outputs !== row.layer.outputs) said.push(`This run keeps ${count(kept.outputs)} of ${count(row.layer.outputs)} outputs.`);
  if (kept && kept.trained_outputs < kept.outputs) said.push(`This run trains ${count(kept.trained_outputs)} of ${count(kept.outputs)} outputs, which a basis expands.`);
  if (kept && kept.patterns !== null) said.push(`This run reads each direction in ${count(kept.patterns)} of ${count(row.layer.taps)} patterns, on average.`);
  if (kept && kept.reason) said.push(`This run: ${kept.reason}.`);
  if (kept && kept.note) said.push(`Note: ${kept.note}.`);
  if (kept && kept.output_reason) said.push(`Outputs: ${kept.output_reason}.`);
  if (row.tried && plan.reason && !(kept && kept.reason)) said.push(`Slider: ${plan.reason}.`);
  if (!kept && !row.tried && plan.reason) said.push(`${plan.reason}.`);
  if (row.tried && plan.rank !== null) {
    const share = plan.variance === null ? '' : `, ${percent(plan.variance)} of the variance`;
    said.unshift(`Slider: ${count(row.layer.trainable)} → ${count(plan.trainable)} trained${share}.`);
  }
  row.why.textContent = said.join(' ');
  if (row.chart) row.chart.update(plan.rank, choice.rule);
}

function showTotals(plan) {
  const least = plan.exact ? '' : '≥ ';
  const before = { trainable: sum(data.layers.map((layer) => layer.trainable)), stored: sum(data.layers.map((layer) => layer.size)) };
  before.flops = plan.flops === null ? null : sum(data.layers.map((layer) => layer.flops));
  const sizes = (label, name, was, note) => tile(label, `${least}${count(plan[name])}`, {
    was: `was ${count(was)}`, badge: factor(was, plan[name]), note, id: `total-${name}`,
  });
  const tiles = [
    sizes('Trained parameters', 'trainable', before.trainable, 'in linear and convolutional layers'),
    sizes('Stored numbers', 'stored', before.stored, 'with bases and means'),
  ];
  if (plan.flops !== null) tiles.push(sizes('FLOPs per sample', 'flops', before.flops, 'forward, in these layers'));
  const was = plan.least === null ? null : `least in a layer: ${percent(plan.least)}`;
  const note = plan.changed ? `mean over ${plan.changed} of ${data.layers.length} layers, those that get smaller` : 'no layer would get smaller';
  const shown = plan.variance !== null ? percent(plan.variance) : plan.changed ? 'not all known' : 'all';
  tiles.push(tile('Variance kept', shown, { was, note, id: 'total-variance' }));
  byId('totals').replaceChildren(...tiles);
}

function update() {
  const plan = planAll(data, choice);
  showTotals(plan);
  plan.layers.forEach((planned, index) => updateLayer(rows[index], planned));
  byId('python').textContent = pythonConfig(data, choice);
  byId('toml').textContent = tomlConfig(data, choice);
}
