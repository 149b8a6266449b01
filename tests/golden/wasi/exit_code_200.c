// Codes over 125 are codes too.
#include "check.h"

int main(void) { CALL(proc_exit)(200); }
