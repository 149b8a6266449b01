// A reactor whose exports answer from what a constructor makes: _initialize runs it.

#include <stdio.h>

namespace {

struct Counter {
    int value;

    Counter() : value(42) {
        puts("constructed");
    }
};

Counter counter;

} // namespace

extern "C" {

__attribute__((export_name("get"))) int get() {
    return counter.value;
}

__attribute__((export_name("add"))) int add(int more) {
    return counter.value += more;
}
}
