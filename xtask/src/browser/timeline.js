// SPDX-License-Identifier: GPL-2.0 OR MIT
// Runs in Perfetto's viewer and returns what it shows of a trace, as JSON.
(async () => {
  const PATIENCE = 50000; // milliseconds, and less than the protocol's
  const DRAWING = 40000; // what is not drawn until then, is not
  const CHROMA = 40; // of a colour's 255; the lines of the grid are grey
  const begun = Date.now();
  const until = async (what, is) => {
    for (; !is(); await new Promise(done => setTimeout(done, 50))) {
      if (Date.now() - begun > PATIENCE) throw new Error(`the viewer takes too long: ${what}`);
    }
  };
  const dialog = () => document.querySelector('.pf-modal-dialog');
  const loaded = () => window.app?.trace && !window.app.isLoadingTrace;
  await until('loading', () => loaded() || dialog());
  if (dialog()) return JSON.stringify({ rows: [], slices: 0, errors: [dialog().innerText] });
  const trace = window.app.trace;
  // The type of a column is its example's.
  const ask = async (query, columns) => {
    const found = [];
    const result = await trace.engine.query(query);
    for (const at = result.iter(columns); at.valid(); at.next()) {
      found.push(Object.fromEntries(Object.keys(columns).map(column => [column, at[column]])));
    }
    return found;
  };
  const [{ slices }] = await ask('select count(*) as slices from slice', { slices: 0 });
  const wrong = "select name, value from stats where severity in ('error', 'data_loss') and value > 0";
  const errors = (await ask(wrong, { name: 'str', value: 0 })).map(({ name, value }) => `${name}: ${value}`);
  await trace.commands.runCommand('dev.perfetto.ExpandTracksByRegex', '.*');
  const tracks = () => [...document.querySelectorAll('.pf-track__header')];
  const name = track => track.querySelector('.pf-track__title-popup')?.textContent ?? '';
  const box = track => track.getBoundingClientRect();
  // Whether an event is to be seen in a row. The canvas is behind the rows, and wider than them.
  const isDrawn = track => [...document.querySelectorAll('canvas')].some(canvas => {
    const [of, on] = [box(track), box(canvas)];
    const left = box(track.querySelector('.pf-track__shell')).right;
    const scale = canvas.width / on.width;
    const [x, y] = [Math.max(left - on.left, 0), of.top - on.top].map(at => Math.round(at * scale));
    const [width, height] = [Math.round((on.right - left) * scale), Math.round(of.height * scale)];
    if (!(width > 0 && height > 0 && y >= 0 && y + height <= canvas.height)) return false;
    const { data } = canvas.getContext('2d').getImageData(x, y, width, height);
    for (let at = 0; at < data.length; at += 4) {
      const colour = data.subarray(at, at + 3);
      if (data[at + 3] && Math.max(...colour) - Math.min(...colour) > CHROMA) return true;
    }
    return false;
  });
  // A process that is expanded has its events in its rows.
  const rows = () => tracks().filter(track => !track.classList.contains('pf-track__header--expanded--summary'));
  const empty = () => rows().filter(track => !isDrawn(track)).map(name);
  await until('drawing', () => rows().length && (!empty().length || Date.now() - begun > DRAWING));
  const bottom = Math.ceil(Math.max(...tracks().map(track => box(track).bottom)));
  return JSON.stringify({ slices, errors, rows: tracks().map(name), empty: empty(), bottom });
})()
