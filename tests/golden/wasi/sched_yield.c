// Yielding succeeds.
#include "check.h"

int main(void) {
    for (int i = 0; i < 3; i++) EXPECT(0, CALL(sched_yield)());
    return wrong;
}
