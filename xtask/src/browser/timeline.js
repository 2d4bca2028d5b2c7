// SPDX-License-Identifier: GPL-2.0 OR MIT
// Runs in chrome://tracing, gives its viewer a trace, and returns what the viewer has of it, as JSON.
(async () => {
  const wait = milliseconds => new Promise(resolve => setTimeout(resolve, milliseconds));
  const until = async (what, wanted) => {
    for (let round = 0; round < 300; round += 1) {
      const found = wanted();
      if (found) return found;
      await wait(100);
    }
    throw new Error(`no ${what}`);
  };
  const view = await until('viewer', () => window.profilingView || document.querySelector('body > *[id=profiling-view]'));
  const before = view.model;
  view.setActiveTrace('timeline', TRACE);
  const model = await until('model', () => view.model !== before && view.model);
  await wait(500);
  let slices = 0;
  let spans = 0;
  for (const thread of model.getAllThreads()) {
    slices += thread.sliceGroup.slices.length;
    spans += thread.asyncSliceGroup.slices.length;
  }
  const processes = model.getAllProcesses().map(process => process.name).filter(Boolean);
  const complaints = (model.importWarnings || []).map(warning => warning.message || String(warning));
  return JSON.stringify({ processes, slices, spans, complaints });
})()
