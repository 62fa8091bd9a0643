// What happens when the page opens, and when its buttons are pressed.

async function copy(button) {
  const text = byId(button.dataset.copy).textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const chosen = document.createRange(); // where a page from a file may not use the clipboard
    chosen.selectNodeContents(byId(button.dataset.copy));
    window.getSelection().removeAllRanges();
    window.getSelection().addRange(chosen);
    document.execCommand('copy');
  }
  button.textContent = 'Copied';
  setTimeout(() => { button.textContent = 'Copy'; }, 1500);
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === 'dark' : window.matchMedia('(prefers-color-scheme: dark)').matches;
}

function showTheme() {
  byId('theme').textContent = isDark() ? '☀' : '☾';
}

function start() {
  byId('title').textContent = data.title;
  byId('facts').textContent = data.facts.join(' · ');
  byId('footer').textContent = `Made by pcn ${data.version}. This file holds everything it shows and asks the network for nothing.`;
  showHeadline();
  showHistory();
  data.layers.forEach(showLayer);
  showOthers();
  const when = data.spectra_epoch === null ? '' : ` Spectra as after epoch ${data.spectra_epoch}.`;
  const run = data.planned ? 'Blue: what this run keeps. ' : 'This run has not switched. ';
  const about = data.layers.some((layer) => !layer.centred) ? ' Layers are not centred: variances here are about zero, with the mean in them.' : '';
  byId('layers-text').textContent = data.missing ? data.missing : `${run}Orange: what the slider would keep. The curve: the variance along each direction of the layer's input, on a logarithmic scale.${about}${when}`;
  if (data.missing) {
    ['explore-title', 'explore-text', 'controls', 'skip-label', 'totals', 'codes'].forEach((id) => { byId(id).hidden = true; });
    rows.forEach((row) => updateLayer(row, { rank: null, reason: row.layer.fixed, exact: true }));
  } else {
    byId('skip').checked = choice.skipLarger;
    setMode(choice.rule.mode);
  }
  byId('slider').addEventListener('input', () => setValue(fromSlider(Number(byId('slider').value))));
  byId('value').addEventListener('change', typed);
  byId('skip').addEventListener('change', () => { choice.skipLarger = byId('skip').checked; update(); });
  ['share', 'variance'].forEach((mode) => byId(`mode-${mode}`).addEventListener('click', () => setMode(mode)));
  document.querySelectorAll('[data-copy]').forEach((button) => button.addEventListener('click', () => copy(button)));
  byId('theme').addEventListener('click', () => {
    document.documentElement.dataset.theme = isDark() ? 'light' : 'dark';
    showTheme();
  });
  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', showTheme);
  showTheme();
}

start();
