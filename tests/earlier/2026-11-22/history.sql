BEGIN TRANSACTION;
CREATE TABLE baselines (
	id TEXT NOT NULL, 
	machine TEXT NOT NULL, 
	made TEXT NOT NULL, 
	content TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "baselines" VALUES('29806dd042e43fd9','node1','2026-11-28T23:51:13+00:00','{"schema":1,"machine":"node1","begins":"2026-01-01","accepted":false,"reason":"as measured","commit":"0123abc","who":"dev","when":"2026-11-28T23:51:13+00:00","rows":{"broadcast/gloo/n4/1048576/float/none/r0/out/isolated":{"median":997964.0615272672,"nights":14}}}');
INSERT INTO "baselines" VALUES('1362577bef4654bf','node1','2026-11-28T23:51:25+00:00','{"schema":1,"machine":"node1","begins":"2026-01-11","accepted":true,"reason":"new kernel","commit":"0123abc","who":"dev","when":"2026-11-28T23:51:25+00:00","rows":{"all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated":{"median":1196559.6116203328,"nights":4}}}');
CREATE TABLE cases (
	"key" TEXT NOT NULL, 
	spec TEXT NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "cases" VALUES('all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated','{"collective":"all_reduce","backend":"gloo","n":4,"nbytes":1048576,"algorithm":"native","dtype":"float","op":"sum","root":-1,"in_place":false,"mode":"isolated","env":[],"splits":"","align":1,"cycle":0,"groups":"","group":0,"of":1,"arrival":""}');
INSERT INTO "cases" VALUES('broadcast/gloo/n4/1048576/float/none/r0/out/isolated','{"collective":"broadcast","backend":"gloo","n":4,"nbytes":1048576,"algorithm":"native","dtype":"float","op":"none","root":0,"in_place":false,"mode":"isolated","env":[],"splits":"","align":1,"cycle":0,"groups":"","group":0,"of":1,"arrival":""}');
CREATE TABLE collbench_schema (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "collbench_schema" VALUES(2);
CREATE TABLE environments (
	fingerprint TEXT NOT NULL, 
	facts TEXT NOT NULL, 
	PRIMARY KEY (fingerprint)
);
INSERT INTO "environments" VALUES('cd2e865cbe4a','{"kernel":"6.1.0","product":"PowerEdge R750","cpu":{"model":"Xeon","cores":8,"physical":8},"container":{"cpu_quota":null},"libraries":{"torch":"2.6.0"},"python":"3.11.9","host":"node1"}');
CREATE TABLE rows (
	run TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	launch INTEGER NOT NULL, 
	median DOUBLE NOT NULL, 
	samples INTEGER NOT NULL, 
	manner TEXT NOT NULL, 
	unfit TEXT NOT NULL, 
	PRIMARY KEY (run, "key", launch), 
	FOREIGN KEY(run) REFERENCES runs (id), 
	FOREIGN KEY("key") REFERENCES cases ("key")
);
INSERT INTO "rows" VALUES('night-000','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',0,1002138.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-000','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',1,1002139.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-000','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',2,1002140.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-000','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',0,1012321.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-000','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',1,1012322.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-000','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',2,1012323.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-001','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',0,1002175.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-001','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',1,1002176.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-001','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',2,1002177.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-001','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',0,997028.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-001','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',1,997029.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-001','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',2,997030.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-002','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',0,1021403.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-002','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',1,1021404.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-002','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',2,1021405.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-002','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',0,991924.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-002','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',1,991925.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-002','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',2,991926.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-003','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',0,988940.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-003','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',1,988941.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-003','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',2,988942.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-003','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',0,1007550.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-003','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',1,1007551.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-003','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',2,1007552.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-004','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',0,996230.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-004','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',1,996231.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-004','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',2,996232.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-004','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',0,1002537.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-004','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',1,1002538.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-004','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',2,1002539.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-005','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',0,1020637.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-005','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',1,1020638.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-005','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',2,1020639.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-005','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',0,1008998.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-005','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',1,1008999.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-005','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',2,1009000.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-006','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',0,1006487.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-006','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',1,1006488.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-006','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',2,1006489.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-006','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',0,996553.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-006','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',1,996554.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-006','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',2,996555.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-007','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',0,1006652.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-007','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',1,1006653.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-007','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',2,1006654.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-007','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',0,985290.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-007','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',1,985291.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-007','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',2,985292.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-008','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',0,994872.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-008','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',1,994873.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-008','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',2,994874.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-008','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',0,998899.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-008','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',1,998900.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-008','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',2,998901.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-009','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',0,1225777.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-009','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',1,1225778.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-009','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',2,1225780.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-009','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',0,995551.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-009','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',1,995552.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-009','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',2,995553.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-010','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',0,1202010.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-010','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',1,1202011.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-010','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',2,1202012.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-010','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',0,1007782.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-010','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',1,1007783.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-010','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',2,1007784.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-011','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',0,1201308.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-011','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',1,1201309.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-011','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',2,1201310.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-011','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',0,1001937.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-011','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',1,1001938.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-011','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',2,1001939.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-012','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',0,1185361.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-012','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',1,1185362.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-012','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',2,1185363.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-012','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',0,983823.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-012','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',1,983824.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-012','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',2,983825.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-013','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',0,1191828.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-013','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',1,1191829.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-013','all_reduce/gloo/n4/1048576/float/sum/r-1/out/isolated',2,1191830.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-013','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',0,988119.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-013','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',1,988120.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
INSERT INTO "rows" VALUES('night-013','broadcast/gloo/n4/1048576/float/none/r0/out/isolated',2,988120.0,7,'agg_iters 1, blocking 0, cache cold, pin True, start window, times measured, unalign 0','');
CREATE TABLE runs (
	id TEXT NOT NULL, 
	machine TEXT NOT NULL, 
	night TEXT NOT NULL, 
	started TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	tag TEXT NOT NULL, 
	file TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "runs" VALUES('night-000','node1','2026-01-01','2026-01-02T01:00:00+00:00','cd2e865cbe4a','','runs/night-000.jsonl');
INSERT INTO "runs" VALUES('night-001','node1','2026-01-02','2026-01-03T01:00:00+00:00','cd2e865cbe4a','','runs/night-001.jsonl');
INSERT INTO "runs" VALUES('night-002','node1','2026-01-03','2026-01-04T01:00:00+00:00','cd2e865cbe4a','','runs/night-002.jsonl');
INSERT INTO "runs" VALUES('night-003','node1','2026-01-04','2026-01-05T01:00:00+00:00','cd2e865cbe4a','','runs/night-003.jsonl');
INSERT INTO "runs" VALUES('night-004','node1','2026-01-05','2026-01-06T01:00:00+00:00','cd2e865cbe4a','','runs/night-004.jsonl');
INSERT INTO "runs" VALUES('night-005','node1','2026-01-06','2026-01-07T01:00:00+00:00','cd2e865cbe4a','','runs/night-005.jsonl');
INSERT INTO "runs" VALUES('night-006','node1','2026-01-07','2026-01-08T01:00:00+00:00','cd2e865cbe4a','','runs/night-006.jsonl');
INSERT INTO "runs" VALUES('night-007','node1','2026-01-08','2026-01-09T01:00:00+00:00','cd2e865cbe4a','','runs/night-007.jsonl');
INSERT INTO "runs" VALUES('night-008','node1','2026-01-09','2026-01-10T01:00:00+00:00','cd2e865cbe4a','','runs/night-008.jsonl');
INSERT INTO "runs" VALUES('night-009','node1','2026-01-10','2026-01-11T01:00:00+00:00','cd2e865cbe4a','','runs/night-009.jsonl');
INSERT INTO "runs" VALUES('night-010','node1','2026-01-11','2026-01-12T01:00:00+00:00','cd2e865cbe4a','','runs/night-010.jsonl');
INSERT INTO "runs" VALUES('night-011','node1','2026-01-12','2026-01-13T01:00:00+00:00','cd2e865cbe4a','','runs/night-011.jsonl');
INSERT INTO "runs" VALUES('night-012','node1','2026-01-13','2026-01-14T01:00:00+00:00','cd2e865cbe4a','','runs/night-012.jsonl');
INSERT INTO "runs" VALUES('night-013','node1','2026-01-14','2026-01-15T01:00:00+00:00','cd2e865cbe4a','','runs/night-013.jsonl');
CREATE INDEX ix_runs_machine ON runs (machine);
CREATE INDEX ix_baselines_machine ON baselines (machine);
COMMIT;
