/* Divides by zero in a line that tests know; built with line tables, and without a C library. */

__attribute__((noinline)) static int part_of(int wanted) {
    int whole = 100;
    __asm__ volatile("" : "+r"(whole));
    return whole / wanted;
}

__attribute__((export_name("run"))) int run(int wanted) {
    int first = 1;
    __asm__ volatile("" : "+r"(first));
    first += part_of(wanted);
    return first;
}
