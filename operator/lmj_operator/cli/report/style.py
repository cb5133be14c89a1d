"""How the page looks: in light and in dark, wide and on a phone."""

CSS = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1c2024;--dim:#5c656e;--rule:#dfe3e7;--card:#f5f7f9;--line:#2166ac;--validation:#b35806;
--test:#1b7837;--failed:#c0242f;--moved:#6a4fb3;--on:#fff;
--p0:#cfe0f1;--p1:#d5ead2;--p2:#f6dfc4;--p3:#e3d7f1;--p4:#f5d3da;--p5:#d0eaea}
@media(prefers-color-scheme:dark){:root{--paper:#14171a;--ink:#e6e9ec;--dim:#9aa4ad;--rule:#31373d;--card:#1d2226;--line:#6db3f2;
--validation:#f0a04b;--test:#5fc27a;--failed:#ff7b7b;--moved:#b79df5;--on:#14171a;
--p0:#24496b;--p1:#2c5633;--p2:#6b4a22;--p3:#4a3a6b;--p4:#6b2f3d;--p5:#1f5757}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:64rem;padding:1.5rem 1rem 3rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;overflow-wrap:anywhere}
h1{margin:0;font-size:1.6rem;line-height:1.25}h2{margin:2rem 0 .5rem;font-size:1.15rem}p{margin:.4rem 0}
.dim,footer,figcaption{color:var(--dim);font-size:.875rem}
.phase{display:inline-block;margin-left:.5rem;padding:.1rem .6rem;border-radius:1rem;background:var(--card);border:1px solid var(--rule);
font-size:.9rem;font-weight:400;vertical-align:middle}.phase.Succeeded{color:var(--test)}.phase.Failed{color:var(--failed)}
.tiles{display:grid;grid-template-columns:repeat(4,minmax(0,1fr));gap:.5rem;margin:1rem 0;padding:0}
.tiles div{background:var(--card);border-radius:.5rem;padding:.5rem .75rem}
.tiles dt{color:var(--dim);font-size:.8rem}.tiles dd{margin:0;font-size:1.25rem;font-variant-numeric:tabular-nums}
.facts{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:0}.facts dt{color:var(--dim)}.facts dd{margin:0}
figure{margin:0}svg{display:block;width:100%;height:auto}.w380{display:none}
svg text{font:12px system-ui,sans-serif;fill:var(--dim);font-variant-numeric:tabular-nums}
.raw{fill:none;stroke:var(--line);stroke-width:1;opacity:.3}circle.raw{fill:var(--line)}
polyline.validation{fill:none;stroke:var(--validation);stroke-width:1.5}.rate{fill:none;stroke:var(--test);stroke-width:1.5}
.stay text{fill:var(--ink)}.place0 rect{fill:var(--p0)}.place1 rect{fill:var(--p1)}.place2 rect{fill:var(--p2)}
.place3 rect{fill:var(--p3)}.place4 rect{fill:var(--p4)}.place5 rect{fill:var(--p5)}.unknown rect{fill:var(--card)}
.wait{fill:var(--failed);opacity:.25}.absent{fill:var(--paper);opacity:.7;stroke:var(--dim);stroke-dasharray:3 2}
.cell .back{fill:var(--card)}.right rect{fill:var(--line)}.wrong rect{fill:var(--failed)}
.cell text{fill:var(--ink)}.cell.deep text{fill:var(--on)}
.beside{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:0 2rem}
.grid{stroke:var(--rule)}.axis{stroke:var(--dim)}.line{fill:none;stroke:var(--line);stroke-width:1.5;stroke-linejoin:round}
circle.line{fill:var(--line)}.validation{fill:var(--validation)}.test{fill:var(--test)}
.mark line{stroke-width:1.5}.mark text,.badge{font-weight:600}svg .mark text{fill:var(--on);font-weight:600}
.failed line{stroke:var(--failed);stroke-dasharray:4 3}.failed rect{fill:var(--failed)}
.moved line{stroke:var(--moved)}.moved rect{fill:var(--moved)}
.badge{display:inline-block;justify-self:start;min-width:1.4em;padding:0 .3em;text-align:center;color:var(--on);border-radius:1em}
.badge.failed{background:var(--failed)}.badge.moved{background:var(--moved);border-radius:.25em}
.key{display:inline-block;width:.8em;height:.8em;margin-right:.3em}.key.loss{height:.2em;vertical-align:middle;background:var(--line)}
.key.raw{height:.2em;vertical-align:middle;background:var(--line);opacity:.35}.key.wait{background:var(--failed);opacity:.35}
.key.absent{border:1px dashed var(--dim)}
.key.validation{border-radius:50%;background:var(--validation)}.key.test{transform:rotate(45deg) scale(.8);background:var(--test)}
figcaption span{margin-right:1rem;white-space:nowrap}
table{width:100%;border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{padding:.35rem .6rem .35rem 0;border-bottom:1px solid var(--rule);text-align:left;vertical-align:top}
.incidents{table-layout:fixed}.incidents th:nth-child(1){width:4%}.incidents th:nth-child(2){width:10%}.incidents th:nth-child(3){width:7%}
.incidents th:nth-child(4){width:11%}.incidents th:nth-child(5){width:5%}.incidents th:nth-child(6){width:12%}
.incidents th:nth-child(7){width:9%}.incidents th:nth-child(9){width:11%}
th{color:var(--dim);font-weight:400;white-space:nowrap}summary{cursor:pointer;color:var(--dim)}footer{margin-top:2.5rem}
@media(max-width:40rem){.tiles{grid-template-columns:repeat(2,minmax(0,1fr))}.beside{display:block}
.w380{display:block}.w880{display:none}thead{display:none}tr{display:block;padding:.5rem 0;
border-bottom:1px solid var(--rule)}td{display:grid;grid-template-columns:6.5rem 1fr;border:0;padding:.1rem 0}
td::before{content:attr(data-of);color:var(--dim)}td:empty{display:none}}
@media print{body{max-width:none}}
"""
