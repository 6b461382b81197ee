/* Runs the script that is the first argument; the others are its `arg`. */
#include <stdio.h>
#include "lauxlib.h"
#include "lua.h"
#include "lualib.h"

int main(int argc, char **argv)
{
	lua_State *state = luaL_newstate();
	luaL_openlibs(state);
	lua_newtable(state);
	for (int i = 2; i < argc; i++) {
		lua_pushstring(state, argv[i]);
		lua_rawseti(state, -2, i - 1);
	}
	lua_setglobal(state, "arg");
	if (argc < 2 || luaL_dofile(state, argv[1])) {
		fprintf(stderr, "%s\n", lua_tostring(state, -1));
		return 1;
	}
	lua_close(state);
	return 0;
}
