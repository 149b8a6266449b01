// What main returns is the exit code.
int main(void) { return 5; }
