// The slider: shares of a list, or variances between the smallest and the largest there are, on a logarithmic scale.

const SHARES = [...range(50, 90, 1), ...range(90, 99, 0.5), ...range(99, 99.9, 0.1), ...range(99.9, 99.99, 0.01), 99.99];
const STEPS = 240;
const known = { share: 0.95, variance: null, [data.rule.mode]: data.rule.value };
const eigenvalues = Object.values(data.activations).flatMap((activation) => activation.values.flat());
const largest = eigenvalues.reduce((most, value) => Math.max(most, value), 1e-300);
const smallest = Math.max(eigenvalues.reduce((least, value) => Math.min(least, value), largest / 10), largest * 1e-9);

function range(from, until, step) {
  return Array.from({ length: Math.round((until - from) / step) }, (_, index) => Number((from + index * step).toFixed(4)));
}

function fromSlider(position) {
  if (choice.rule.mode === 'share') return Number((SHARES[position] / 100).toFixed(6));
  return Number((smallest * (largest / smallest) ** (position / STEPS)).toPrecision(3));
}

function toSlider(value) {
  if (choice.rule.mode === 'variance') {
    const place = (STEPS * Math.log(value / smallest)) / Math.log(largest / smallest);
    return Math.round(Math.min(Math.max(place, 0), STEPS));
  }
  const distance = SHARES.map((share) => Math.abs(share / 100 - value));
  return distance.indexOf(Math.min(...distance));
}

function shownValue() {
  const { mode, value } = choice.rule;
  return mode === 'share' ? String(Number((100 * value).toPrecision(8))) : String(value);
}

function setMode(mode) {
  known[choice.rule.mode] = choice.rule.value;
  choice.rule = { mode, value: known[mode] };
  byId('slider').max = mode === 'share' ? SHARES.length - 1 : STEPS;
  if (choice.rule.value === null) choice.rule.value = fromSlider(Math.round(0.6 * STEPS));
  ['share', 'variance'].forEach((each) => byId(`mode-${each}`).setAttribute('aria-pressed', String(each === mode)));
  byId('unit').textContent = mode === 'share' ? '%' : '';
  setValue(choice.rule.value);
}

function setValue(value) {
  choice.rule.value = value;
  byId('slider').value = toSlider(value);
  byId('slider').setAttribute('aria-valuetext', shownValue());
  byId('value').value = shownValue();
  byId('value').removeAttribute('aria-invalid');
  update();
}

function typed() {
  const number = Number(byId('value').value.trim().replace('%', '').replace(',', '.') || NaN);
  const value = choice.rule.mode === 'share' ? Number((number / 100).toPrecision(12)) : number;
  const fits = choice.rule.mode === 'share' ? value > 0 && value <= 1 : value >= 0 && Number.isFinite(value);
  if (fits) setValue(value);
  else byId('value').setAttribute('aria-invalid', 'true');
}
