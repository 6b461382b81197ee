def show(what, ctx):
    print(what, *("%s=%r" % pair for pair in ctx.items()))
def uftrace_begin(ctx): show("begin", ctx)
def uftrace_entry(ctx): show("entry", ctx)
def uftrace_exit(ctx): show("exit", ctx)
def uftrace_event(ctx): show("event", ctx)
def uftrace_end(): print("end")
