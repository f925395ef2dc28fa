BEGIN TRANSACTION;
CREATE TABLE blindsight_workbench_jobs (
	id TEXT NOT NULL, 
	number INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	arguments TEXT NOT NULL, 
	asker TEXT NOT NULL, 
	state TEXT NOT NULL, 
	done INTEGER NOT NULL, 
	total INTEGER NOT NULL, 
	note TEXT NOT NULL, 
	result TEXT, 
	attempts INTEGER NOT NULL, 
	made TEXT NOT NULL, 
	ended TEXT, 
	runner TEXT, 
	lease FLOAT, 
	PRIMARY KEY (id)
);
INSERT INTO "blindsight_workbench_jobs" VALUES('0000000000000001',1,'protect','{"step": "scan", "dataset": "abababababab"}','ann','done',1,1,'done',NULL,1,'2026-01-07T10:00:00+00:00',NULL,NULL,NULL);
INSERT INTO "blindsight_workbench_jobs" VALUES('0000000000000002',2,'attack','{"dataset": "cdcdcdcdcdcd", "release": "efefefefefef"}','ann','failed',1,1,'failed',NULL,1,'2026-01-07T10:00:00+00:00',NULL,NULL,NULL);
INSERT INTO "blindsight_workbench_jobs" VALUES('0000000000000003',3,'send','{}','ann','queued',1,1,'queued',NULL,1,'2026-01-07T10:00:00+00:00',NULL,NULL,NULL);
CREATE TABLE blindsight_workbench_keys (
	name TEXT NOT NULL, 
	role TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	made TEXT NOT NULL, 
	revoked TEXT, 
	PRIMARY KEY (name), 
	UNIQUE (digest)
);
INSERT INTO "blindsight_workbench_keys" VALUES('ann','owner','1fc244ee85481f728235ac4cc9e16abc0795656669bab5dc8838b224f870aea1','2026-01-05T10:00:00+00:00',NULL);
INSERT INTO "blindsight_workbench_keys" VALUES('ben','analyst','d6b590342f13e65af33c1b7fc416feb2e09d6de54df7c2c67b5a31eff6e29f86','2026-01-06T10:00:00+00:00','2026-02-01T10:00:00+00:00');
CREATE TABLE blindsight_workbench_sessions (
	digest TEXT NOT NULL, 
	name TEXT NOT NULL, 
	until FLOAT NOT NULL, 
	PRIMARY KEY (digest)
);
INSERT INTO "blindsight_workbench_sessions" VALUES('7132474b80e4399dcf6b6165042546d9a0ad6e5e04d95c34d4300a008f2dde49','ann',4102444800.0);
CREATE INDEX ix_blindsight_workbench_jobs_state ON blindsight_workbench_jobs (state);
CREATE INDEX ix_blindsight_workbench_jobs_number ON blindsight_workbench_jobs (number);
COMMIT;
