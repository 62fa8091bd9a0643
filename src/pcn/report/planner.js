// What pcn.make_plan gives for one rule on all layers: the same questions in the same order as Spectrum and LayerPlan.

const ROUNDING = 1 - 1e-12;

// The directions of one group that a rule keeps. Where the known eigenvalues do not answer, `exact` is false and the
// count is the fewest that it can be.
function countOf(values, total, complete, rule) {
  if (rule.mode === 'variance') {
    const above = values.filter((value) => value > rule.value).length;
    return { count: above, exact: complete || above < values.length };
  }
  const wanted = rule.value * ROUNDING * total;
  let held = 0;
  for (let index = 0; index < values.length; index += 1) {
    held += values[index];
    if (held >= wanted) return { count: index + 1, exact: true };
  }
  return { count: values.length + (complete ? 0 : 1), exact: complete };
}

function rankOf(activation, rule, multipleOf) {
  const groups = activation.values.map((values, group) =>
    countOf(values, activation.totals[group], activation.complete, rule));
  const most = Math.max(1, ...groups.map((group) => group.count));
  const rank = Math.min(Math.ceil(most / multipleOf) * multipleOf, activation.width);
  return { rank, exact: groups.every((group) => group.exact) };
}

// The share of an activation's variance that its leading directions hold; null where too few are known.
function varianceKept(activation, rank) {
  const total = sum(activation.totals);
  if (rank >= activation.width || total <= 0) return 1;
  if (!activation.complete && rank > activation.values[0].length) return null;
  return sum(activation.values.map((values) => sum(values.slice(0, rank)))) / total;
}

function sum(numbers) {
  return numbers.reduce((total, number) => total + number, 0);
}

// Sizes of a layer with a rank, or as it is with null. `how` holds what is not usual: bases that are trained too, and
// weights outside of them that stay, frozen, and do not count where a layer is asked whether it got smaller.
function sizesOf(layer, rank, how) {
  const width = layer.inputs / layer.groups;
  const known = layer.out_positions !== null && layer.in_positions !== null;
  if (rank === null) {
    return { trainable: layer.trainable, stored: layer.size, own: layer.size, flops: known ? layer.flops : null };
  }
  const weights = layer.outputs * rank * layer.trained_taps;
  const basis = layer.inputs * (rank + 1);
  const biases = layer.bias_after ? layer.outputs : 0;
  const patterns = layer.trained_taps < layer.taps ? layer.groups * rank * (layer.trained_taps + 1) * layer.taps : 0;
  const frozen = how.keep_dropped ? layer.outputs * width * layer.taps : 0;
  const own = weights + biases + basis + patterns;
  const trained = layer.frozen ? 0 : weights + (how.train_basis ? basis - (layer.centred ? 0 : layer.inputs) : 0);
  const operations = layer.out_positions * (layer.outputs * rank * layer.taps + frozen) + layer.in_positions * layer.inputs * rank;
  return {
    width,
    trainable: trained + (layer.trains_bias ? biases : 0),
    stored: own + frozen,
    own,
    flops: known ? 2 * operations : null,
  };
}

function planLayer(layer, activations, choice, how) {
  const alone = (reason) => ({ rank: null, reason, exact: true, variance: 1, ...sizesOf(layer, null, how) });
  if (layer.fixed !== null) return alone(layer.fixed);
  const activation = activations[layer.activation];
  const { rank, exact } = rankOf(activation, choice.rule, choice.multipleOf);
  const sizes = sizesOf(layer, rank, how);
  if (choice.skipLarger && sizes.own >= layer.size) {
    return alone(`rank ${rank} would not make it smaller, the basis included`);
  }
  return { rank, reason: null, exact, variance: varianceKept(activation, rank), ...sizes };
}

function planAll(data, choice) {
  const layers = data.layers.map((layer) => planLayer(layer, data.activations, choice, data.config.how));
  const changed = layers.filter((layer) => layer.rank !== null);
  const total = (name) => (layers.some((layer) => layer[name] === null) ? null : sum(layers.map((layer) => layer[name])));
  const variances = changed.map((layer) => layer.variance);
  const known = variances.length > 0 && variances.every((value) => value !== null);
  return {
    layers,
    changed: changed.length,
    exact: layers.every((layer) => layer.exact),
    trainable: total('trainable'),
    stored: total('stored'),
    flops: total('flops'),
    variance: known ? sum(variances) / variances.length : null,
    least: known ? Math.min(...variances) : null,
  };
}

// Texts to paste. JSON's strings are also Python's and TOML's.
function inPython(value) {
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  return JSON.stringify(value);
}

function pythonConfig(data, choice) {
  const { rule } = choice;
  const rank = rule.mode === 'share' ? `pcn.ExplainedVariance(${rule.value})` : `pcn.Threshold(${rule.value})`;
  const names = data.config.exclude.map((name) => JSON.stringify(name));
  const lines = [`rank=${rank}`];
  if (names.length) lines.push(`exclude=(${names.join(', ')},)`);
  if (!choice.skipLarger) lines.push('skip_larger=False');
  if (data.config.kernel_rank !== null) lines.push(`kernel_rank=${data.config.kernel_rank}`);
  if (choice.multipleOf !== 1) lines.push(`multiple_of=${choice.multipleOf}`);
  Object.entries(data.config.how).forEach(([name, value]) => lines.push(`${name}=${inPython(value)}`));
  return lines.length === 1 ? `pcn.PCNConfig(${lines[0]})` : `pcn.PCNConfig(\n    ${lines.join(',\n    ')},\n)`;
}

function tomlConfig(data, choice) {
  const { rule } = choice;
  const percent = Number((100 * rule.value).toPrecision(12));
  const lines = [`rank = "${rule.mode === 'share' ? `${percent}%` : `variance > ${rule.value}`}"`];
  if (data.config.exclude.length) lines.push(`exclude = [${data.config.exclude.map((name) => JSON.stringify(name)).join(', ')}]`);
  if (!choice.skipLarger) lines.push('skip_larger = false');
  if (data.config.kernel_rank !== null) lines.push(`kernel_rank = ${data.config.kernel_rank}`);
  return `${data.toml}${lines.join('\n')}\n`;
}
