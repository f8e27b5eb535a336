# The programs.  Each is one line in bin_PROGRAMS and two of its own:
#   k3_name_SOURCES = drivers/k3_name.c $(drivers_shared)
#   k3_name_LDADD = $(k3_libs)
# drivers_shared are the files that all of them use; they are compiled once.
drivers_shared =
