/* Fills a table in memory, and asks it questions: the argument says how much. */
#include <stdio.h>
#include <stdlib.h>
#include "sqlite3.h"

static void run(sqlite3 *db, const char *sql)
{
	char *error = NULL;
	if (sqlite3_exec(db, sql, NULL, NULL, &error) != SQLITE_OK) {
		fprintf(stderr, "%s\n", error);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 1;
	char sql[512];
	sqlite3 *db;
	if (sqlite3_open(":memory:", &db) != SQLITE_OK)
		return 1;
	run(db, "CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, c REAL); CREATE INDEX i ON t(b)");
	snprintf(sql, sizeof sql,
		 "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < %d) "
		 "INSERT INTO t SELECT x, printf('%%08d', x * 7919 %% 100003), x * 0.5 FROM n", n);
	run(db, sql);
	run(db, "SELECT b, sum(c), count(*) FROM t GROUP BY substr(b, 1, 3) ORDER BY 2 DESC");
	run(db, "SELECT count(*) FROM t x JOIN t y ON x.b = y.b WHERE x.a < y.a");
	sqlite3_close(db);
	return 0;
}
