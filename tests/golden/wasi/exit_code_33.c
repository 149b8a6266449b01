// proc_exit ends the program at once, with its code.
#include "check.h"

int main(void) {
    say("before\n");
    CALL(proc_exit)(33);
}
